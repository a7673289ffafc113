// Backends, models, instances, requests and the way back to the server.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <unordered_map>

#include "abi.h"

constexpr size_t INLINE_BYTES = 4096;         // smaller outputs are copied into the message
constexpr size_t QUEUE_BYTES = 64 << 20;      // a sender waits while so much is queued
constexpr size_t MAX_QUEUED_LOGS = 4096;      // later lines are dropped, and counted

// What a message to the server tells, and what follows the number; `backends/cpp/events.py` has the same numbers.
//   RESPONSE     token, final, error code or -1, its text, parameters, outputs [name, data type, shape, data]
//   CLOSED       token, whether there was no final response
//   RESCHEDULED  token
//   STATE        token, name, data type, shape, bytes
//   LOG          level, file, line, text
//   ACTIVITY     token, time in ns, name
//   WATCH        token: a backend asks whether the request is cancelled
//   CALL         its number, tokens of callers, model, version, id, sequence, flags, priority, timeout, parameters, inputs
//                [name, data type, shape, data], outputs
//   CANCEL       number of a call
//   QUESTION     its number, what, model, version, JSON, files
//   TIMED        token, number of the response, outcome, time of inference and of output in ns
enum Event : int { RESPONSE, CLOSED, RESCHEDULED, STATE, LOG, ACTIVITY, WATCH, CALL, CANCEL, QUESTION, TIMED };

// Carries events that are no part of an execution's result: late responses, log lines. Any thread adds to it; one
// thread of the server waits for the descriptor and takes everything.
class Queue {
 public:
  static Queue& global();
  int descriptor();
  bool has_reader();
  void put(const std::string& event);
  void log(int level, const char* file, int line, const char* text);
  const std::string& take();  // valid until the next call, by one thread
 private:
  std::mutex mutex_;
  std::condition_variable space_;
  std::string events_, taken_;
  size_t count_ = 0, logs_ = 0, dropped_ = 0;
  int descriptor_ = -1;
  void append(const std::string& event);
};

// An array of MessagePack in two parts: the number of events, and the events.
std::string message_of(size_t count, const std::string& events);

// Asks the server, and waits for the answer; the files are [name, bytes].
Error* ask(
    std::string& answer, const char* what, const char* model = "", int64_t version = -1, const std::string& json = "",
    const std::vector<std::pair<std::string, Bytes>>& files = {});

struct TRITONBACKEND_MemoryManager {};
struct TRITONSERVER_Server {};

using BackendFunction = Error* (*)(void*);

// An instance group that a backend prefers; a count of 0 is for the usual one.
struct PreferredGroup {
  int kind;
  uint64_t count;
  std::vector<uint64_t> gpus;
};

struct TRITONBACKEND_Backend {
  std::string name, location;
  TRITONSERVER_Message config;
  TRITONBACKEND_MemoryManager memory;
  int execution_policy = 0;
  bool parallel_loading = false;
  std::vector<PreferredGroup> preferred_groups;
  void* state = nullptr;
  void* library = nullptr;
  BackendFunction initialize = nullptr, finalize = nullptr;
  BackendFunction model_initialize = nullptr, model_finalize = nullptr;
  BackendFunction instance_initialize = nullptr, instance_finalize = nullptr, instance_ready = nullptr;
  Error* (*instance_execute)(void*, void**, uint32_t) = nullptr;
  Error* (*attributes)(void*, void*) = nullptr;
};

struct TRITONBACKEND_Model {
  TRITONBACKEND_Backend* backend = nullptr;
  std::string name, directory, config;
  uint64_t version = 0;
  bool auto_complete = false, decoupled = false, iterative = false;
  // Names of outputs that the sequence's next request gets as inputs; and of the inputs that share their buffers, or "".
  std::vector<std::pair<std::string, std::string>> states;
  void* state = nullptr;
};

struct Execution;
struct TRITONBACKEND_Request;

using Memory = std::shared_ptr<std::vector<char>>;

struct TRITONBACKEND_ModelInstance {
  TRITONBACKEND_Model* model = nullptr;
  std::string name;
  int kind = 0, device_id = 0;
  bool passive = false;
  std::vector<std::string> profiles;
  std::vector<std::pair<std::string, int64_t>> secondary_devices;
  TRITONSERVER_Message host_policy;
  void* state = nullptr;
  std::mutex mutex;
  std::shared_ptr<Execution> current;
  std::string reply;  // of the last execution
  std::map<std::string, std::map<std::string, Memory>> shared;  // buffers of states, by sequence and output
};

struct TRITONBACKEND_State {
  std::string name;
  int datatype = 0;
  std::vector<int64_t> shape;
  Memory data;
  TRITONSERVER_BufferAttributes attributes;
  struct Exchange* exchange = nullptr;
};

// One call of TRITONBACKEND_ModelInstanceExecute. Events of its requests are collected here until it returns.
struct Execution {
  std::mutex mutex;
  bool open = true;
  std::string events;
  size_t count = 0;
  std::vector<TRITONBACKEND_Request*> requests;  // null once released
  char* arena = nullptr;                         // the server's memory for large outputs
  size_t arena_size = 0, arena_used = 0, wanted = 0;
  uint64_t compute_start_ns = 0, compute_end_ns = 0;

  char* allocate(size_t size);  // null if there is no room, or the execution has returned
};
inline thread_local Execution* executing = nullptr;

// What a request, its responses and their factories share. The server hears of the end of the last of them.
struct Exchange : std::enable_shared_from_this<Exchange> {
  TRITONBACKEND_Model* model = nullptr;
  uint64_t token = 0;
  std::string id;
  std::shared_ptr<Execution> execution;
  std::atomic<bool> cancelled{false}, watched{false};
  std::atomic<bool> finished{false};  // answered, or the server answers it
  std::atomic<bool> rescheduled{false};
  std::atomic<uint64_t> timed{0};  // responses whose times the backend has reported
  std::mutex mutex;
  std::map<std::string, TRITONBACKEND_State> states;
  std::map<std::string, Memory> shared;  // buffers of states that are one with an input's

  ~Exchange();
  void put(const std::string& event, bool with_execution);
  bool is_cancelled();
  std::string prefix() const;  // of error texts
};

// Marks the request as cancelled; does nothing if no backend asks whether it is.
void cancel(uint64_t token);

struct TRITONSERVER_InferenceTrace {
  Exchange* exchange = nullptr;
  std::shared_ptr<Exchange> owner;  // of a trace that a backend has made
};

struct TRITONBACKEND_Input {
  std::string name;
  int datatype = 0;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  uint64_t size = 0;
  std::unique_ptr<char[]> copy;
  TRITONSERVER_BufferAttributes attributes;
};

struct TRITONBACKEND_Request {
  std::shared_ptr<Exchange> exchange;
  size_t index = 0;  // in its execution
  uint64_t correlation_id = 0, timeout_us = 0;
  std::string correlation_text;
  bool correlation_is_text = false, traced = false;
  uint32_t flags = 0;
  std::vector<TRITONSERVER_Parameter> parameters;
  std::vector<TRITONBACKEND_Input> inputs;
  std::vector<std::string> outputs;
  TRITONSERVER_InferenceTrace trace;

  // A text for the sequence, by which Python names it too.
  std::string sequence() const {
    return correlation_is_text ? "t" + correlation_text : std::to_string(correlation_id);
  }
};

// A call of another model: its request, its responses, and the memory that they are written to.
struct TRITONSERVER_ResponseAllocator;
struct TRITONSERVER_InferenceRequest;
struct TRITONSERVER_InferenceResponse;
using Allocator = TRITONSERVER_ResponseAllocator;
using CallRequest = TRITONSERVER_InferenceRequest;
using CallResponse = TRITONSERVER_InferenceResponse;
using Trace = TRITONSERVER_InferenceTrace;
using ReleaseRequest = void (*)(CallRequest*, uint32_t flags, void* context);
using Complete = void (*)(CallResponse*, uint32_t flags, void* context);

struct TRITONSERVER_ResponseAllocator {
  Error* (*allocate)(Allocator*, const char*, size_t, int, int64_t, void*, void**, void**, int*, int64_t*);
  Error* (*release)(Allocator*, void*, void*, size_t, int, int64_t);
  Error* (*start)(Allocator*, void*);
  Error* (*attributes)(Allocator*, const char*, TRITONSERVER_BufferAttributes*, void*, void*) = nullptr;
  Error* (*query)(Allocator*, void*, const char*, size_t*, int*, int64_t*) = nullptr;
};

struct CallInput {
  std::string name;
  int datatype = 0;
  std::vector<int64_t> shape;
  std::vector<std::pair<const char*, size_t>> parts;
};

struct CallOutput {
  std::string name;
  int datatype = 0;
  std::vector<int64_t> shape;
  void *data = nullptr, *context = nullptr;
  TRITONSERVER_BufferAttributes attributes;
};

struct TRITONSERVER_InferenceRequest {
  std::string model, version, id, correlation_text;
  bool correlation_is_text = false;
  uint64_t correlation_id = 0, priority = 0, timeout_us = 0;
  uint32_t flags = 0;
  std::vector<TRITONSERVER_Parameter> parameters;
  std::vector<CallInput> inputs;
  std::vector<std::string> outputs;
  ReleaseRequest release = nullptr;
  Complete complete = nullptr;
  void *release_context = nullptr, *complete_context = nullptr, *allocator_context = nullptr;
  Allocator* allocator = nullptr;
  std::atomic<bool> cancelled{false};
  std::atomic<uint64_t> call{0};  // its number, once it was sent
  std::unique_ptr<Trace> trace;   // of the call, if the backend has made one

  std::string prefix() const { return "[request id: " + (id.empty() ? "<id_unknown>" : id) + "] "; }
};

struct TRITONSERVER_InferenceResponse {
  std::unique_ptr<Error> failure;
  std::string model, id;
  int64_t version = -1;
  Allocator* allocator = nullptr;
  std::vector<TRITONSERVER_Parameter> parameters;
  std::vector<CallOutput> outputs;

  ~TRITONSERVER_InferenceResponse() {
    for (const CallOutput& output : outputs)
      if (output.data != nullptr) {
        const TRITONSERVER_BufferAttributes& memory = output.attributes;
        delete allocator->release(
            allocator, output.data, output.context, memory.byte_size, memory.memory_type, memory.memory_type_id);
      }
  }
};

Error* check_config_version(uint32_t version);
Error* out_of_bounds(uint32_t index, size_t count, const char* has, const char* what, const std::string& prefix = "");

// Reads what `backends/cpp/requests.py` writes.
std::unique_ptr<TRITONBACKEND_Request> read_request(Reader& reader, TRITONBACKEND_Model* model, uint64_t token);

// Reads an array of these fields.
template <class... T>
Error* read_fields(const char* data, size_t size, T&... values) try {
  Reader(data, size).fields(values...);
  return nullptr;
} catch (const std::exception& failure) {
  return error(INTERNAL, std::string("message: ") + failure.what());
}

// Libraries stay loaded: their threads may outlive the model.
inline Error* load_library(const char* path, void** library) {
  *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return *library == nullptr ? error(NOT_FOUND, std::string("unable to load shared library: ") + dlerror()) : nullptr;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}
