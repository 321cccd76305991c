// A rank of the CUDA programs: reads commands on standard input and answers each in one line of JSON, as programs.py does.
//
//     programs RANK FOLDER        FOLDER is one of the ranks that belong together
//
// With -DDYNAMIC the one program that starts kernels from kernels. It is a program of its own because CUDA refuses every kernel of a
// module that contains such a one under MPS.

#include <cuda_runtime.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#ifndef DYNAMIC
#include <cooperative_groups.h>
#endif

static void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error) + " (" + std::to_string(int(error)) +
                                 "): " + cudaGetErrorString(error));
    }
}
#define CHECK(call) check((call), #call)

static double now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static double processor() {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

[[maybe_unused]] static int rank_number;
static std::string folder;

struct Program {
    // Does some work, waits for it, and returns how many units it was.
    virtual double step() = 0;
    // What the program computes, the same under MPS.
    virtual double answer() = 0;
    virtual const char *unit() = 0;
    virtual ~Program() {}
};

static void finish() { CHECK(cudaStreamSynchronize(0)); }

template <typename T> struct Device {
    T *at = nullptr;
    size_t count;
    explicit Device(size_t count) : count(count) {
        CHECK(cudaMalloc(&at, count * sizeof(T)));
        CHECK(cudaMemset(at, 0, count * sizeof(T)));
    }
    ~Device() { cudaFree(at); }
    std::vector<T> read() {
        std::vector<T> values(count);
        CHECK(cudaMemcpy(values.data(), at, count * sizeof(T), cudaMemcpyDeviceToHost));
        return values;
    }
};

template <typename T> static double sum(const std::vector<T> &values) {
    double all = 0;
    for (T value : values) all += value;
    return all;
}

#ifdef DYNAMIC

__global__ void child(unsigned *to) { atomicAdd(to, 1u); }
__global__ void parent(unsigned *to) { child<<<2, 32>>>(to); }

struct Dynamic : Program {
    Device<unsigned> counter{1};
    const char *unit() { return "launches"; }
    double answer() {
        parent<<<4, 1>>>(counter.at);
        CHECK(cudaGetLastError());
        finish();
        return counter.read()[0];
    }
    double step() {
        for (int i = 0; i < 20; i++) parent<<<4, 1>>>(counter.at);
        CHECK(cudaGetLastError());
        finish();
        return 20;
    }
};

static Program *made(const std::string &name) { return name == "dynamic parallelism" ? new Dynamic : nullptr; }

#else

__global__ void count(unsigned *to) {
    if (threadIdx.x == 0) atomicAdd(to, 1u);
}

__global__ void triad(float *a, const float *b, const float *c, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += gridDim.x * size_t(blockDim.x)) {
        a[i] = b[i] + 2.5f * c[i];
    }
}

__global__ void fill(float *a, float value, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += gridDim.x * size_t(blockDim.x)) {
        a[i] = value + i % 7;
    }
}

__global__ void compute(float *to, int rounds) {
    float x = threadIdx.x * 1e-3f, y = blockIdx.x * 1e-3f;
    for (int i = 0; i < rounds; i++) {
        // A rotation: neither grows nor shrinks.
        x = x + 0.01f * y;
        y = y - 0.01f * x;
    }
    to[blockIdx.x * blockDim.x + threadIdx.x] = x + y;
}

// Each block adds one, waits for all, and adds what it then sees: right only if the wait holds.
__global__ void together(unsigned *arrived, unsigned *wrong, unsigned rounds) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    for (unsigned round = 1; round <= rounds; round++) {
        if (threadIdx.x == 0) atomicAdd(arrived, 1u);
        grid.sync();
        if (threadIdx.x == 0 && *(volatile unsigned *)arrived != round * gridDim.x) atomicAdd(wrong, 1u);
        grid.sync();
    }
}

// Launches that nothing waits for: bound by the processor.
struct Launches : Program {
    Device<unsigned> counter{1};
    const char *unit() { return "launches"; }
    double answer() {
        step();
        return counter.read()[0];
    }
    double step() {
        for (int i = 0; i < 1000; i++) count<<<1, 32>>>(counter.at);
        finish();
        return 1000;
    }
};

// Each launch is waited for: bound by the time that a launch takes.
struct Waits : Launches {
    double step() {
        for (int i = 0; i < 200; i++) {
            count<<<1, 32>>>(counter.at);
            finish();
        }
        return 200;
    }
};

struct Copies : Program {
    Device<char> there{4096};
    char *here;
    Copies() {
        CHECK(cudaHostAlloc(&here, 4096, 0));
        memset(here, 3, 4096);
    }
    ~Copies() { cudaFreeHost(here); }
    const char *unit() { return "copies of 4 KiB"; }
    double answer() {
        step();
        return sum(there.read());
    }
    double step() {
        for (int i = 0; i < 200; i++) {
            CHECK(cudaMemcpyAsync(there.at, here, 4096, cudaMemcpyHostToDevice, 0));
            finish();
        }
        return 200;
    }
};

struct Bandwidth : Program {
    static const size_t COUNT = 64 << 20;
    Device<float> a{COUNT}, b{COUNT}, c{COUNT};
    Bandwidth() {
        fill<<<1024, 256>>>(b.at, 1, COUNT);
        fill<<<1024, 256>>>(c.at, 2, COUNT);
    }
    const char *unit() { return "GB"; }
    double answer() {
        step();
        std::vector<float> some(1 << 16);
        CHECK(cudaMemcpy(some.data(), a.at, some.size() * sizeof(float), cudaMemcpyDeviceToHost));
        return sum(some);
    }
    double step() {
        const int times = 10;
        for (int i = 0; i < times; i++) triad<<<2048, 256>>>(a.at, b.at, c.at, COUNT);
        finish();
        return times * 3.0 * COUNT * sizeof(float) / 1e9;
    }
};

// Kernels that fill a quarter of the GPU.
struct Compute : Program {
    Device<float> to{32 * 256};
    const char *unit() { return "kernels"; }
    double answer() {
        step();
        return sum(to.read());
    }
    double step() {
        for (int i = 0; i < 50; i++) compute<<<32, 256>>>(to.at, 20000);
        CHECK(cudaGetLastError());
        finish();
        return 50;
    }
};

struct Cooperative : Program {
    Device<unsigned> arrived{1}, wrong{1};
    int blocks = 0;
    Cooperative() {
        int processors, each;
        CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
        CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, together, 128, 0));
        blocks = processors * each;
    }
    const char *unit() { return "grid barriers"; }
    double answer() {
        step();
        return wrong.read()[0];
    }
    double step() {
        unsigned rounds = 50;
        CHECK(cudaMemsetAsync(arrived.at, 0, sizeof(unsigned), 0));
        void *arguments[] = {&arrived.at, &wrong.at, &rounds};
        CHECK(cudaLaunchCooperativeKernel((void *)together, dim3(blocks), dim3(128), arguments, 0, 0));
        finish();
        return 2.0 * rounds;
    }
};

struct Graph : Program {
    Device<unsigned> counter{1};
    cudaGraphExec_t graph;
    cudaStream_t stream;
    Graph() {
        cudaGraph_t captured;
        CHECK(cudaStreamCreate(&stream));
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < 20; i++) count<<<1, 32, 0, stream>>>(counter.at);
        CHECK(cudaStreamEndCapture(stream, &captured));
        CHECK(cudaGraphInstantiate(&graph, captured, 0));
        CHECK(cudaGraphDestroy(captured));
    }
    ~Graph() {
        cudaGraphExecDestroy(graph);
        cudaStreamDestroy(stream);
    }
    const char *unit() { return "graphs of 20 kernels"; }
    double answer() {
        step();
        return counter.read()[0];
    }
    double step() {
        for (int i = 0; i < 50; i++) CHECK(cudaGraphLaunch(graph, stream));
        CHECK(cudaStreamSynchronize(stream));
        return 50;
    }
};

// 32 MiB of managed memory that processor and GPU write in turn.
struct Managed : Program {
    static const size_t COUNT = 8 << 20;
    float *at;
    Managed() { CHECK(cudaMallocManaged(&at, COUNT * sizeof(float))); }
    ~Managed() { cudaFree(at); }
    const char *unit() { return "turns"; }
    double answer() {
        step();
        double all = 0;
        for (size_t i = 0; i < COUNT; i += 4096) all += at[i];
        return all;
    }
    double step() {
        fill<<<1024, 256>>>(at, 1, COUNT);
        finish();
        for (size_t i = 0; i < COUNT; i += 1 << 18) at[i] += 1;
        return 1;
    }
};

// Rank 0 makes memory that the other ranks open and read.
struct Ipc : Program {
    static const size_t COUNT = 1 << 20;
    Device<float> own{COUNT};
    float *shared = nullptr;
    Ipc() {
        std::string file = folder + "/ipc-handle";
        cudaIpcMemHandle_t handle;
        if (rank_number == 0) {
            CHECK(cudaMalloc(&shared, COUNT * sizeof(float)));
            fill<<<64, 256>>>(shared, 5, COUNT);
            finish();
            CHECK(cudaIpcGetMemHandle(&handle, shared));
            FILE *to = fopen((file + ".new").c_str(), "w");
            if (!to || fwrite(&handle, sizeof handle, 1, to) != 1 || fclose(to) != 0 ||
                rename((file + ".new").c_str(), file.c_str()) != 0) {
                throw std::runtime_error("cannot write the handle");
            }
            return;
        }
        for (double end = now() + 10; access(file.c_str(), R_OK) != 0; usleep(5000)) {
            if (now() > end) throw std::runtime_error("no handle of rank 0");
        }
        FILE *from = fopen(file.c_str(), "r");
        bool read = from && fread(&handle, sizeof handle, 1, from) == 1;
        if (from) fclose(from);
        if (!read) throw std::runtime_error("cannot read the handle");
        CHECK(cudaIpcOpenMemHandle((void **)&shared, handle, cudaIpcMemLazyEnablePeerAccess));
    }
    ~Ipc() { rank_number == 0 ? cudaFree(shared) : cudaIpcCloseMemHandle(shared); }
    const char *unit() { return "reads of 4 MiB"; }
    double answer() {
        step();
        return sum(own.read());
    }
    double step() {
        for (int i = 0; i < 200; i++) triad<<<64, 256>>>(own.at, shared, shared, COUNT);
        CHECK(cudaGetLastError());
        finish();
        return 200;
    }
};

struct Priorities : Program {
    Device<float> to{64 * 256};
    cudaStream_t low, high;
    cudaEvent_t event;
    Priorities() {
        int least, greatest;
        CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        CHECK(cudaStreamCreateWithPriority(&low, cudaStreamNonBlocking, least));
        CHECK(cudaStreamCreateWithPriority(&high, cudaStreamNonBlocking, greatest));
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    ~Priorities() {
        cudaEventDestroy(event);
        cudaStreamDestroy(low);
        cudaStreamDestroy(high);
    }
    const char *unit() { return "pairs of kernels"; }
    double answer() {
        step();
        return sum(to.read());
    }
    double step() {
        for (int i = 0; i < 50; i++) {
            compute<<<32, 256, 0, low>>>(to.at, 2000);
            CHECK(cudaEventRecord(event, low));
            CHECK(cudaStreamWaitEvent(high, event, 0));
            compute<<<32, 256, 0, high>>>(to.at + 32 * 256, 2000);
        }
        CHECK(cudaStreamSynchronize(low));
        CHECK(cudaStreamSynchronize(high));
        return 50;
    }
};

struct Pool : Program {
    const char *unit() { return "allocations"; }
    double last = 0;
    double answer() {
        step();
        return last;
    }
    double step() {
        for (int i = 0; i < 100; i++) {
            float *at, first;
            CHECK(cudaMallocAsync(&at, 1 << 20, 0));
            fill<<<64, 256, 0, 0>>>(at, float(i), (1 << 20) / sizeof(float));
            CHECK(cudaMemcpyAsync(&first, at, sizeof first, cudaMemcpyDeviceToHost, 0));
            CHECK(cudaFreeAsync(at, 0));
            finish();
            last = first;
        }
        return 100;
    }
};

static Program *made(const std::string &name) {
    if (name == "launches") return new Launches;
    if (name == "launches waited for") return new Waits;
    if (name == "small copies") return new Copies;
    if (name == "memory bandwidth") return new Bandwidth;
    if (name == "kernels of a quarter GPU") return new Compute;
    if (name == "cooperative groups") return new Cooperative;
    if (name == "CUDA graphs") return new Graph;
    if (name == "managed memory") return new Managed;
    if (name == "IPC between ranks") return new Ipc;
    if (name == "stream priorities") return new Priorities;
    if (name == "memory pool") return new Pool;
    return nullptr;
}

#endif

static Program *program = nullptr;

static std::string prepared(const std::string &name) {
    double begin = now();
    delete program;
    program = nullptr;
    program = made(name);
    if (!program) throw std::runtime_error("no such program");
    double answer = program->answer();
    if (!std::isfinite(answer)) throw std::runtime_error("the answer is not a number");
    int version = 0;
    CHECK(cudaRuntimeGetVersion(&version));
    char line[512];
    snprintf(line, sizeof line, "{\"answer\":[%.9g],\"unit\":\"%s\",\"seconds\":%.3f,\"version\":\"CUDA %d.%d\"}", answer,
             program->unit(), now() - begin, version / 1000, version % 1000 / 10);
    return line;
}

static std::string window(double at, double seconds) {
    if (!program) throw std::runtime_error("not prepared");
    while (now() < at) program->step();
    double begin = now(), busy = processor(), count = 0;
    while (now() - begin < seconds) count += program->step();
    double took = now() - begin;
    char line[256];
    snprintf(line, sizeof line, "{\"count\":%.9g,\"seconds\":%.6f,\"processor\":%.3f}", count, took, (processor() - busy) / took);
    return line;
}

static std::string said(const std::string &line) {
    size_t first = line.find('\t');
    std::string verb = line.substr(0, first), rest = first == std::string::npos ? "" : line.substr(first + 1);
    try {
        if (verb == "prepare") return prepared(rest);
        double at, seconds;
        if (verb == "run" && sscanf(rest.c_str(), "%lf\t%lf", &at, &seconds) == 2) return window(at, seconds);
        throw std::runtime_error("unknown command");
    } catch (const std::exception &error) {
        std::string text = error.what();
        for (char &letter : text) {
            if (letter == '"' || letter == '\\' || letter < ' ') letter = ' ';
        }
        return "{\"error\":\"" + text + "\"}";
    }
}

int main(int count, char **words) {
    if (count != 3) return 2;
    rank_number = atoi(words[1]);
    folder = words[2];
    char line[512];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        puts(said(line).c_str());
        fflush(stdout);
    }
    return 0;
}
