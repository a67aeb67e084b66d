//! The order in which buffers lie in a ring: a CQE of a bundle names the first, and the others follow it
//! (trap 30).

pub(super) struct Order {
    links: Box<[Link]>,
    last: Option<u16>,
}

#[derive(Clone, Copy, Default)]
struct Link {
    /// Where it was put.
    place: u16,
    /// Which was put behind it.
    next: Option<u16>,
    /// The kernel has it.
    lies: bool,
}

impl Order {
    pub(super) fn new(count: u16) -> Order {
        Order {
            links: vec![Link::default(); usize::from(count)].into_boxed_slice(),
            last: None,
        }
    }

    /// Buffer `id` was put behind all others, at `place`.
    #[inline]
    pub(super) fn added(&mut self, id: u16, place: u16) {
        if let Some(last) = self.last.replace(id) {
            self.links[usize::from(last)].next = Some(id);
        }
        self.links[usize::from(id)] = Link {
            place,
            next: None,
            lies: true,
        };
    }

    /// The kernel has used it up.
    #[inline]
    pub(super) fn take(&mut self, id: u16) {
        self.links[usize::from(id)].lies = false;
    }

    /// The place of a buffer that the kernel has, and the one behind it.
    #[inline]
    pub(super) fn find(&self, id: u16) -> Option<(u16, Option<u16>)> {
        let link = self.links.get(usize::from(id))?;
        link.lies.then_some((link.place, link.next))
    }
}
