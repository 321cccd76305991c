//! What goes wrong under MPS, in words: one table for `mpsctl explain`, the manual page and the tests.

/// One thing that goes wrong.
#[derive(Debug)]
pub struct Row {
    /// A short name, as a heading.
    pub name: &'static str,
    /// Numbers of CUDA errors that mean it.
    pub codes: &'static [u32],
    /// What programs and logs write where it happens, in lower case.
    pub words: &'static [&'static str],
    /// Why it happens.
    pub cause: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// Where that is known from: a section of `docs/facts`, or `documented` for NVIDIA's manual, release 615.
    pub source: &'static str,
}

/// All of them.
pub static ROWS: &[Row] = &[
    Row {
        name: "GPU busy",
        codes: &[46],
        words: &[
            "cudaerrordevicesunavailable",
            "cuda_error_device_unavailable",
            "devices are busy or unavailable",
        ],
        cause: "another process holds the GPU, or the GPU is in mode EXCLUSIVE_PROCESS and this process \
                does not reach the job's MPS",
        remedy: "start the program in the job's environment: mpsctl exec, or eval \"$(mpsctl env)\"; in a \
                 container bind the pipe directory. Without a job of yours there, ask the administrator \
                 who holds the GPU",
        source: "field.md#what-users-and-sites-report",
    },
    Row {
        name: "no GPU behind this daemon",
        codes: &[100],
        words: &[
            "cudaerrornodevice",
            "cuda_error_no_device",
            "no cuda-capable device is detected",
        ],
        cause: "CUDA_VISIBLE_DEVICES names a GPU that the job's daemon does not have. The daemon numbers \
                its own GPUs from 0",
        remedy: "leave CUDA_VISIBLE_DEVICES as the job sets it; for a program that needs numbers, \
                 --mps-visible=ordinal",
        source: "mps-control.md#which-gpus-a-client-sees",
    },
    Row {
        name: "out of memory under a limit",
        codes: &[2],
        words: &[
            "cudaerrormemoryallocation",
            "cuda_error_out_of_memory",
            "cuda out of memory",
            "resource_exhausted: out of memory",
        ],
        cause: "a memory limit lowers the free memory that CUDA reports, not the total. Programs that take \
                a share of the total (vLLM, JAX, TensorFlow) ask for too much. The context itself takes 73 \
                to 120 MiB",
        remedy: "give the program a share of its limit (--gpu-memory-utilization, \
                 XLA_PYTHON_CLIENT_MEM_FRACTION), or ask for more by --mps-mem",
        source: "mps-control.md#memory-limits",
    },
    Row {
        name: "wrong pid namespace",
        codes: &[304],
        words: &["cudaerroroperatingsystem", "cuda_error_operating_system"],
        cause: "the process has its own pid namespace but another one's /proc, so the server cannot \
                identify it",
        remedy: "mount /proc again in the container, or share the host's pid namespace",
        source: "mps-control.md#namespaces",
    },
    Row {
        name: "connection refused",
        codes: &[805],
        words: &["cudaerrormpsconnectionfailed", "cuda_error_mps_connection_failed"],
        cause: "the daemon runs for another user, is ending, or belongs to another job",
        remedy: "run the program as the job's user in the job's environment. mpsctl exec replaces \
                 variables of another job",
        source: "mps-control.md#clients",
    },
    Row {
        name: "the server died",
        codes: &[806],
        words: &["cudaerrormpsrpcfailure", "cuda_error_mps_rpc_failure"],
        cause: "the server, or its control daemon, was killed or shut down while this client was attached",
        remedy: "read the job's log. The next client starts a new server with the same limits while the \
                 control daemon lives",
        source: "mps-control.md#crashes-and-hangs",
    },
    Row {
        name: "the server lost a client",
        codes: &[],
        words: &[
            "recevie command with status 806",
            "receive command with status 806",
        ],
        cause: "a client ended, was killed, or was terminated. The number is not the client's error",
        remedy: "none if the client was to end. Else read its output. The job's report names the signal if \
                 Slurm or the kernel (Linux 6.15) tells it",
        source: "mps-control.md#crashes-and-hangs",
    },
    Row {
        name: "server not ready",
        codes: &[807],
        words: &[
            "cudaerrormpsservernotready",
            "cuda_error_mps_server_not_ready",
            "server is not ready, push client to pending list",
        ],
        cause: "the server is starting, or waits after a fatal error until all clients of that GPU have \
                ended. A client on the pending list is served when the server is up",
        remedy: "end the job's other processes on that GPU, then start again",
        source: "mps-control.md#error-containment",
    },
    Row {
        name: "too many clients",
        codes: &[808, 809],
        words: &[
            "cudaerrormpsmaxclientsreached",
            "cuda_error_mps_max_clients_reached",
            "cudaerrormpsmaxconnectionsreached",
            "cuda_error_mps_max_connections_reached",
        ],
        cause: "a GPU takes 48 clients up to driver 580, 60 from 590 on (documented), 16 before Volta, and \
                fewer if CUDA_DEVICE_MAX_CONNECTIONS is above 2",
        remedy: "start fewer processes on each GPU, without CUDA_DEVICE_MAX_CONNECTIONS. --mps-bind=block \
                 spreads them over the job's GPUs",
        source: "mps-control.md#clients",
    },
    Row {
        name: "no static partition",
        codes: &[915],
        words: &[
            "cudaerrorinvalidresourceconfiguration",
            "cuda_error_invalid_resource_configuration",
        ],
        cause: "the job has static partitions (MPS_SMS), and this process has none, or another GPU's \
                (documented, not verified)",
        remedy: "start all ranks of a node by one srun, or each rank by mpsctl exec: both hand out \
                 partitions",
        source: "mps-control.md#static-partitions",
    },
    Row {
        name: "client ended by terminate_client",
        codes: &[810],
        words: &[
            "cudaerrormpsclientterminated",
            "cuda_error_mps_client_terminated",
            "client termination succeeded",
        ],
        cause: "the job's end, memory_over_limit = \"terminate\", or the user ended this client through \
                the control daemon",
        remedy: "if it was over its memory limit, the job's log says so: ask for more by --mps-mem",
        source: "mps-control.md#clients",
    },
    Row {
        name: "a fatal GPU error",
        codes: &[],
        words: &["fault", "caused a fatal", "fatal exception"],
        cause: "a client's fatal error, such as an illegal address, ends every client on that GPU. The \
                server refuses new clients until then (documented, not provoked)",
        remedy: "find the client that failed first, and run it alone, without MPS, under compute-sanitizer",
        source: "mps-control.md#error-containment",
    },
    Row {
        name: "valid credentials",
        codes: &[],
        words: &["user did not send valid credentials"],
        cause: "the control daemon writes this line at every connection that works. It explains nothing",
        remedy: "read the other lines",
        source: "mps-control.md#clients",
    },
    Row {
        name: "a daemon of another user",
        codes: &[],
        words: &["failed to start server using uid"],
        cause: "a process of another user reached this control daemon, which serves its own user alone",
        remedy: "run every process of the job as the job's user, also in a container",
        source: "mps-control.md#when-a-server-is-ready",
    },
    Row {
        name: "no daemon",
        codes: &[],
        words: &["cannot find mps control daemon process"],
        cause: "no control daemon listens in CUDA_MPS_PIPE_DIRECTORY. A CUDA program then runs outside \
                MPS, without an error",
        remedy: "ask by --mps (Slurm) or -A MPS=on (PBS), and start the program in the job's environment. \
                 mpsctl status tells",
        source: "mps-control.md#clients",
    },
    Row {
        name: "a second daemon",
        codes: &[],
        words: &["an instance of this daemon is already running"],
        cause: "a control daemon already serves this pipe directory",
        remedy: "remove the lines that start a daemon from the script: the job already has one",
        source: "mps-control.md#starting",
    },
    Row {
        name: "Nsight Compute",
        codes: &[],
        words: &["==prof==", "ncu", "nsight compute"],
        cause: "ncu needs options for MPS (documented, not tried)",
        remedy: "run ncu --mps=control --mps-num-clients=N once, and the N ranks by ncu --mps=client, one \
                 of them --mps=primary-client. Or profile one rank without --mps",
        source: "mps-control.md#programs-that-read-the-variables-themselves",
    },
    Row {
        name: "CUDA-GDB",
        codes: &[],
        words: &["cuda-gdb"],
        cause: "under cuda-gdb a program waits in cuInit() until the job has no other MPS client, and may \
                then run outside MPS (documented, not tried)",
        remedy: "debug one rank in a job without --mps, or read a GPU core dump afterwards",
        source: "mps-control.md#programs-that-read-the-variables-themselves",
    },
    Row {
        name: "NCCL: several ranks on one GPU",
        codes: &[],
        words: &["duplicate gpu detected", "using the same gpu"],
        cause: "NCCL refuses two ranks of a communicator on one GPU, also under MPS",
        remedy: "use one rank a GPU for what NCCL joins, or from NCCL 2.30 on NCCL_MULTI_RANK_GPU_ENABLE=1 \
                 (experimental, documented)",
        source: "mps-control.md#programs-that-read-the-variables-themselves",
    },
];
