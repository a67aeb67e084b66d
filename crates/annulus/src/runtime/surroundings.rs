//! Another runtime that the tasks of the cores may use: beside the cores, or on the thread of each.

use std::rc::Rc;
use std::time::Duration;

use super::RuntimeBuilder;
use crate::driver::core::Core;
use crate::error::SetupError;

/// A guard: its drop leaves what was entered.
pub(super) type Entered<'a> = Box<dyn Leave + 'a>;

/// Anything with a drop.
pub(super) trait Leave {}

impl<T> Leave for T {}

/// The other runtime of all cores.
pub(super) trait Surroundings: Send + Sync {
    /// Makes the runtime on the thread of `core`, which is the calling thread, if each core has one.
    fn local(&self, core: &Core) -> Result<Option<Rc<dyn Local>>, SetupError>;

    /// Returns the runtime beside the cores, if there is one.
    fn beside(&self) -> Option<&dyn Context>;
}

/// The context of a runtime.
pub(super) trait Context {
    /// Gives it to the calling thread until the guard is dropped.
    fn enter(&self) -> Entered<'_>;
}

/// A runtime on a core's thread, in which the core sleeps.
pub(super) trait Local {
    /// Drives the core's backend once, and then sleeps unless the core is `busy`.
    fn drive(&self, core: &Core, busy: &dyn Fn() -> bool);

    /// Limits the wait for blocking threads at the end.
    fn limit_end(&self, timeout: Duration);

    /// Returns its context, which may be entered for longer than the runtime exists.
    fn context(&self) -> Box<dyn Context>;
}

/// Starts the other runtime that the builder asks for.
#[cfg_attr(
    not(feature = "tokio"),
    expect(unused_variables, clippy::unnecessary_wraps)
)]
pub(super) fn start(builder: &RuntimeBuilder) -> Result<Option<Box<dyn Surroundings>>, SetupError> {
    #[cfg(feature = "tokio")]
    if let Some(started) = super::tokio_context::TokioContext::start(builder)? {
        return Ok(Some(Box::new(started)));
    }
    Ok(None)
}
