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
        cause: "the GPU is in mode EXCLUSIVE_PROCESS, and this process is outside of the MPS that holds it, or another process holds it",
        remedy: "start the program in the job's environment (mpsctl exec, or eval \"$(mpsctl env)\"; bind the pipe directory into a \
                 container); if no job of yours has MPS, the administrator looks who holds the GPU and in which mode it is",
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
        cause: "CUDA_VISIBLE_DEVICES names a GPU that the job's daemon does not have: it numbers its own GPUs from 0, and knows no other \
                UUID",
        remedy: "leave CUDA_VISIBLE_DEVICES as the job sets it; a program that needs numbers gets them by --mps-visible=ordinal",
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
        cause: "under a pinned memory limit the free memory is what the limit leaves, and the total is that of the whole GPU: a program that \
                takes a share of the total (vLLM, JAX, TensorFlow) asks for more than the limit; 73 to 120 MiB of it are the context",
        remedy: "give the program a share of its limit (--gpu-memory-utilization, XLA_PYTHON_CLIENT_MEM_FRACTION), or ask for more by \
                 --mps-mem",
        source: "mps-control.md#memory-limits",
    },
    Row {
        name: "wrong pid namespace",
        codes: &[304],
        words: &["cudaerroroperatingsystem", "cuda_error_operating_system"],
        cause: "the process is in a pid namespace of its own with the /proc of another one: the server cannot tell who it is",
        remedy: "mount /proc anew in the container, or share the host's pid namespace",
        source: "mps-control.md#namespaces",
    },
    Row {
        name: "connection refused",
        codes: &[805],
        words: &["cudaerrormpsconnectionfailed", "cuda_error_mps_connection_failed"],
        cause: "the daemon does not serve this process: it runs for another user, is ending, or its directory is not this job's",
        remedy: "run the program as the job's user in the job's environment; variables of another job are replaced by mpsctl exec",
        source: "mps-control.md#clients",
    },
    Row {
        name: "the server died",
        codes: &[806],
        words: &["cudaerrormpsrpcfailure", "cuda_error_mps_rpc_failure"],
        cause: "the server, or the control daemon with its server, ended while this client was attached: killed, or shut down at the job's \
                end",
        remedy: "look into the job's log for the server's end; the next client starts a new server with the same limits, as long as the \
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
        cause: "the server writes that where a client has gone: it ended, was killed, or was ended by terminate_client; the number is not \
                the client's error",
        remedy: "nothing, where the client was to end; else its own output says why it did, and the job's report which client a signal ended, where Slurm \
                 or the kernel (Linux 6.15) tells",
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
        cause: "the server is starting, or is in state FAULT and waits until every client of the GPU with the fatal error has ended; a \
                client that is pushed to the pending list is served as soon as the server is up",
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
        cause: "a GPU takes 48 clients up to driver 580, 60 from 590 on (documented), 16 before Volta, fewer where \
                CUDA_DEVICE_MAX_CONNECTIONS is above 2, and this was one more",
        remedy: "start fewer processes on each GPU, without CUDA_DEVICE_MAX_CONNECTIONS; --mps-bind=block deals them out over the job's GPUs",
        source: "mps-control.md#clients",
    },
    Row {
        name: "no static partition",
        codes: &[915],
        words: &[
            "cudaerrorinvalidresourceconfiguration",
            "cuda_error_invalid_resource_configuration",
        ],
        cause: "the job has static partitions (MPS_SMS), and this process has none or another GPU's: a script, a step's only task on \
                its node, or ranks that an MPI launcher started by itself (documented, not verified)",
        remedy: "start all ranks of a node by one srun, or each by mpsctl exec, which give it its own",
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
        cause: "somebody ended this client through the control daemon: the job's end, memory_over_limit = \"terminate\", or its own user",
        remedy: "where it was over its memory limit, the job's log says so: ask for more by --mps-mem",
        source: "mps-control.md#clients",
    },
    Row {
        name: "a fatal GPU error",
        codes: &[],
        words: &["fault", "caused a fatal", "fatal exception"],
        cause: "one client made a fatal error on the GPU (an illegal address, for one): it ends every client on that GPU, and on the GPUs \
                that a client joins with it; the server refuses new ones until these have ended (documented, not provoked)",
        remedy: "find the client that came first: the others fail for its sake; run it alone, without MPS, under compute-sanitizer",
        source: "mps-control.md#error-containment",
    },
    Row {
        name: "valid credentials",
        codes: &[],
        words: &["user did not send valid credentials"],
        cause: "the control daemon writes that at every connection that works: it explains nothing",
        remedy: "look at the other lines",
        source: "mps-control.md#clients",
    },
    Row {
        name: "a daemon of another user",
        codes: &[],
        words: &["failed to start server using uid"],
        cause: "a control daemon that is not root's starts a server for its own user alone: a process of another user came to it",
        remedy: "run every process of the job as the job's user (in a container as the same uid)",
        source: "mps-control.md#when-a-server-is-ready",
    },
    Row {
        name: "no daemon",
        codes: &[],
        words: &["cannot find mps control daemon process"],
        cause: "no control daemon listens in CUDA_MPS_PIPE_DIRECTORY; a CUDA program that finds none runs outside MPS with the whole GPU, \
                without an error",
        remedy: "ask by --mps (Slurm) or -A MPS=on (PBS), and start the program in the job's environment; mps-probe --require-mps tells",
        source: "mps-control.md#clients",
    },
    Row {
        name: "a second daemon",
        codes: &[],
        words: &["an instance of this daemon is already running"],
        cause: "a control daemon serves this pipe directory already",
        remedy: "take the lines out of the script that start one: the job has its own before it begins",
        source: "mps-control.md#starting",
    },
    Row {
        name: "Nsight Compute",
        codes: &[],
        words: &["==prof==", "ncu", "nsight compute"],
        cause: "ncu must be told of MPS: a process of its own controls, and each client is started by ncu as one (documented, not tried)",
        remedy: "ncu --mps=control --mps-num-clients=N once, and the N ranks by ncu --mps=client, one of them --mps=primary-client; or profile one \
                 rank in a job without --mps",
        source: "mps-control.md#programs-that-read-the-variables-themselves",
    },
    Row {
        name: "CUDA-GDB",
        codes: &[],
        words: &["cuda-gdb"],
        cause: "a program that cuda-gdb starts waits in cuInit() until the job has no other MPS client, and may then run outside MPS (documented, \
                not tried)",
        remedy: "debug one rank in a job without --mps; under MPS, take a core dump of the GPU's and read it afterwards",
        source: "mps-control.md#programs-that-read-the-variables-themselves",
    },
    Row {
        name: "NCCL: several ranks on one GPU",
        codes: &[],
        words: &["duplicate gpu detected", "using the same gpu"],
        cause: "NCCL refuses two ranks of a communicator on one GPU, under MPS too",
        remedy: "one rank a GPU for what NCCL joins (--mps-bind=block with as many ranks as GPUs), or from NCCL 2.30 on \
                 NCCL_MULTI_RANK_GPU_ENABLE=1 (experimental, documented)",
        source: "mps-control.md#programs-that-read-the-variables-themselves",
    },
];
