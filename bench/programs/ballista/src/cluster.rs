//! A cluster on loopback: a scheduler and two executors, each a process of this program. A process ends when its
//! standard input does, so none outlives the program that started it.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use annulus_datafusion::{Error, data, text_of};
use annulus_object_store::v0_13::LocalFileSystem;
use ballista::prelude::SessionContextExt;
use ballista_core::utils::default_session_builder;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use clap::Subcommand;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::SessionContext;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use tokio::sync::oneshot;
use url::Url;

pub(crate) const LOCAL: &str = "LocalFileSystem";
pub(crate) const ANNULUS: &str = "annulus";
const HOST: &str = "127.0.0.1";
const EXECUTORS: usize = 2;
/// The time between two looks at whether the scheduler knows an executor.
const LOOK_MS: u64 = 10;

#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Plans queries, and gives their tasks to executors
    Scheduler { store: String },
    /// Runs tasks
    Executor {
        store: String,
        scheduler_port: u16,
        /// The folder for the results of tasks
        folder: String,
    },
}

/// Registers our store. `LocalFileSystem` is in each new registry.
fn register(store: &str, runtime: &RuntimeEnv) {
    if store == ANNULUS {
        let file = Url::parse("file://").expect("it is a URL");
        runtime.register_object_store(&file, Arc::new(LocalFileSystem::new()));
    }
}

/// Runs a process of a cluster until its standard input ends. It prints a line when it is ready, and the number of its
/// reads through our store at its end.
pub(crate) async fn serve(role: Role) -> Result<(), Error> {
    let (sender, parent_ends) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop((ended, sender));
    });
    let service = async {
        match role {
            Role::Scheduler { store } => schedule(store).await,
            Role::Executor {
                store,
                scheduler_port,
                folder,
            } => execute(store, scheduler_port, folder).await,
        }
    };
    tokio::select! {
        ended = service => return Err(format!("a service has ended: {ended:?}").into()),
        _ = parent_ends => {}
    }
    tell(annulus_measure::reads());
    Ok(())
}

/// Tells the program that started this process, unless that has ended.
fn tell(line: impl Display) {
    drop(writeln!(std::io::stdout(), "{line}"));
}

async fn schedule(store: String) -> Result<(), Error> {
    let listener = tokio::net::TcpListener::bind((HOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let config = SchedulerConfig {
        external_host: HOST.to_owned(),
        bind_port: port,
        override_session_builder: Some(Arc::new(move |config| {
            let state = default_session_builder(config)?;
            register(&store, state.runtime_env());
            Ok(state)
        })),
        ..SchedulerConfig::default()
    };
    let cluster = BallistaCluster::new_from_config(&config).await?;
    let config = Arc::new(config);
    let scheduler = create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, config).await?;
    tell(port);
    Ok(start_grpc_service_with_listener(listener, scheduler).await?)
}

async fn execute(store: String, scheduler_port: u16, folder: String) -> Result<(), Error> {
    // Ports that are free now.
    let (flight, tasks) = (TcpListener::bind((HOST, 0))?, TcpListener::bind((HOST, 0))?);
    let config = ExecutorProcessConfig {
        external_host: Some(HOST.to_owned()),
        port: flight.local_addr()?.port(),
        grpc_port: tasks.local_addr()?.port(),
        scheduler_host: HOST.to_owned(),
        scheduler_port,
        vcores: (std::thread::available_parallelism()?.get() / EXECUTORS).max(1),
        work_dir: Some(folder.clone()),
        override_runtime_producer: Some(Arc::new(move |_| {
            let runtime = RuntimeEnvBuilder::new().with_temp_file_path(&folder);
            let runtime = runtime.build_arc()?;
            register(&store, &runtime);
            Ok(runtime)
        })),
        ..ExecutorProcessConfig::default()
    };
    drop((flight, tasks));
    let health = config.health.clone();
    tokio::spawn(async move {
        while !health.is_ready() {
            tokio::time::sleep(Duration::from_millis(LOOK_MS)).await;
        }
        tell("ready");
    });
    Ok(start_executor_process(Arc::new(config)).await?)
}

/// A process of a cluster.
#[derive(Debug)]
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(arguments: &[&str]) -> Result<Process, Error> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("a process has no output")?;
        let output = BufReader::new(output);
        Ok(Process { child, output })
    }

    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(format!("a process of a cluster has ended: {status}").into());
        }
        Ok(line.trim().to_owned())
    }
}

/// A running cluster, and a client of it that has the tables.
pub(crate) struct Cluster {
    pub(crate) store: &'static str,
    pub(crate) context: SessionContext,
    processes: Vec<Process>,
}

impl Cluster {
    /// Starts a cluster. Its executors keep the results of tasks below `folder`.
    pub(crate) async fn start(
        store: &'static str,
        tables: &Path,
        folder: &Path,
    ) -> Result<Cluster, Error> {
        let mut scheduler = Process::start(&["scheduler", store])?;
        let port = scheduler.line()?;
        let mut processes = vec![scheduler];
        for number in 1..=EXECUTORS {
            let folder = folder.join(format!("{store}-{number}"));
            std::fs::create_dir(&folder)?;
            let mut executor = Process::start(&["executor", store, &port, text_of(&folder)?])?;
            executor.line()?;
            processes.push(executor);
        }
        let context = SessionContext::remote(&format!("df://{HOST}:{port}")).await?;
        register(store, &context.runtime_env());
        data::register_tpch(&context, tables).await?;
        Ok(Cluster {
            store,
            context,
            processes,
        })
    }

    /// Returns the CPU time of its processes until now.
    pub(crate) fn cpu(&self) -> Result<Duration, Error> {
        let mut cpu = Duration::ZERO;
        for process in &self.processes {
            let id = i32::try_from(process.child.id())?;
            cpu += Duration::from(clock_getcpuclockid(Pid::from_raw(id))?.now()?);
        }
        Ok(cpu)
    }

    /// Ends the processes, executors first. Returns the number of reads through our store of each.
    pub(crate) fn stop(self) -> Result<Vec<u64>, Error> {
        let mut reads = Vec::new();
        for mut process in self.processes.into_iter().rev() {
            drop(process.child.stdin.take());
            reads.push(process.line()?.parse()?);
            let status = process.child.wait()?;
            if !status.success() {
                return Err(format!("a process of a cluster has failed: {status}").into());
            }
        }
        Ok(reads)
    }
}
