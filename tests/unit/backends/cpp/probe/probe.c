/* A backend for tests, written from the documentation of Triton's backend API; it declares what it uses itself.
 *
 * OUT is 2 * IN (FP32). The request parameter "mode" asks for something else; see `execute_one`. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Error Error;
typedef void Object;
enum { INTERNAL = 1, INVALID_ARG = 3, UNAVAILABLE = 4 };
enum { FP32 = 11, FINAL = 1, RELEASE_ALL = 1, RESCHEDULE = 2, STRING = 0 };

Error* TRITONSERVER_ErrorNew(int code, const char* text);
void TRITONSERVER_ErrorDelete(Error* error);
Error* TRITONSERVER_LogMessage(int level, const char* file, int line, const char* text);
Error* TRITONSERVER_MessageNewFromSerializedJson(Object** message, const char* text, size_t size);
Error* TRITONSERVER_MessageDelete(Object* message);
Error* TRITONSERVER_MessageSerializeToJson(Object* message, const char** text, size_t* size);
Object* TRITONSERVER_ParameterNew(const char* name, int type, const void* value);
void TRITONSERVER_ParameterDelete(Object* parameter);
Error* TRITONSERVER_MetricFamilyNew(Object** family, int kind, const char* name, const char* description);
Error* TRITONSERVER_MetricFamilyDelete(Object* family);
Error* TRITONSERVER_MetricArgsNew(Object** args);
Error* TRITONSERVER_MetricArgsSetHistogram(Object* args, const double* bounds, uint64_t count);
Error* TRITONSERVER_MetricArgsDelete(Object* args);
Error* TRITONSERVER_MetricNewWithArgs(Object** metric, Object* family, const Object** labels, uint64_t n, const Object* args);
Error* TRITONSERVER_MetricNew(Object** metric, Object* family, const Object** labels, uint64_t n);
Error* TRITONSERVER_MetricDelete(Object* metric);
Error* TRITONSERVER_MetricIncrement(Object* metric, double value);
Error* TRITONSERVER_MetricObserve(Object* metric, double value);
Error* TRITONSERVER_InferenceTraceReportActivity(Object* trace, uint64_t time_ns, const char* name);
Error* TRITONSERVER_ServerMetrics(Object* server, Object** metrics);
Error* TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(Object* attribute, bool enabled);
Error* TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
    Object* attribute, int kind, uint64_t count, const uint64_t* gpus, uint64_t n);
Error* TRITONBACKEND_BackendMemoryManager(Object* backend, Object** manager);
Error* TRITONBACKEND_MemoryManagerAllocate(Object* manager, void** buffer, int type, int64_t id, uint64_t size);
Error* TRITONBACKEND_MemoryManagerFree(Object* manager, void* buffer, int type, int64_t id);
Error* TRITONBACKEND_ModelBackend(Object* model, Object** backend);
Error* TRITONBACKEND_ModelAutoCompleteConfig(Object* model, bool* enabled);
Error* TRITONBACKEND_ModelConfig(Object* model, uint32_t version, Object** message);
Error* TRITONBACKEND_ModelSetConfig(Object* model, uint32_t version, Object* message);
Error* TRITONBACKEND_ModelServer(Object* model, Object** server);
Error* TRITONBACKEND_ModelSetState(Object* model, void* state);
Error* TRITONBACKEND_ModelState(Object* model, void** state);
Error* TRITONBACKEND_ModelInstanceModel(Object* instance, Object** model);
Error* TRITONBACKEND_ModelInstanceName(Object* instance, const char** name);
Error* TRITONBACKEND_ModelInstanceHostPolicy(Object* instance, Object** message);
Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(
    Object* instance, uint64_t rows, uint64_t exec_start, uint64_t start, uint64_t end, uint64_t exec_end);
Error* TRITONBACKEND_RequestId(Object* request, const char** id);
Error* TRITONBACKEND_RequestCorrelationId(Object* request, uint64_t* id);
Error* TRITONBACKEND_RequestFlags(Object* request, uint32_t* flags);
Error* TRITONBACKEND_RequestTrace(Object* request, Object** trace);
Error* TRITONBACKEND_InferenceRequestTimeoutMicroseconds(Object* request, uint64_t* timeout);
Error* TRITONBACKEND_RequestIsCancelled(Object* request, bool* cancelled);
Error* TRITONBACKEND_RequestParameterCount(Object* request, uint32_t* count);
Error* TRITONBACKEND_RequestParameter(Object* request, uint32_t index, const char** key, int* type, const void** value);
Error* TRITONBACKEND_RequestInput(Object* request, const char* name, Object** input);
Error* TRITONBACKEND_RequestOutputCount(Object* request, uint32_t* count);
Error* TRITONBACKEND_RequestRelease(Object* request, uint32_t flags);
Error* TRITONBACKEND_InputProperties(
    Object* input, const char** name, int* type, const int64_t** shape, uint32_t* rank, uint64_t* size, uint32_t* buffers);
Error* TRITONBACKEND_InputBuffer(Object* input, uint32_t index, const void** data, uint64_t* size, int* type, int64_t* id);
Error* TRITONBACKEND_ResponseNew(Object** response, Object* request);
Error* TRITONBACKEND_ResponseDelete(Object* response);
Error* TRITONBACKEND_ResponseFactoryNew(Object** factory, Object* request);
Error* TRITONBACKEND_ResponseFactoryDelete(Object* factory);
Error* TRITONBACKEND_ResponseFactorySendFlags(Object* factory, uint32_t flags);
Error* TRITONBACKEND_ResponseNewFromFactory(Object** response, Object* factory);
Error* TRITONBACKEND_ResponseOutput(
    Object* response, Object** output, const char* name, int type, const int64_t* shape, uint32_t rank);
Error* TRITONBACKEND_OutputBuffer(Object* output, void** data, uint64_t size, int* type, int64_t* id);
Error* TRITONBACKEND_ResponseSetStringParameter(Object* response, const char* name, const char* value);
Error* TRITONBACKEND_ResponseSetIntParameter(Object* response, const char* name, int64_t value);
Error* TRITONBACKEND_ResponseSetBoolParameter(Object* response, const char* name, bool value);
Error* TRITONBACKEND_ResponseSetDoubleParameter(Object* response, const char* name, double value);
Error* TRITONBACKEND_ResponseSend(Object* response, uint32_t flags, Error* error);
Error* TRITONBACKEND_StateNew(
    Object** state, Object* request, const char* name, int type, const int64_t* shape, uint32_t rank);
Error* TRITONBACKEND_StateBuffer(Object* state, void** data, uint64_t size, int* type, int64_t* id);
Error* TRITONBACKEND_StateUpdate(Object* state);

#define CHECK(X)                 \
  do {                           \
    Error* failed = (X);         \
    if (failed) return failed;   \
  } while (0)

typedef struct {
  Object *requests_family, *requests, *sizes_family, *sizes;
} Metrics;

Error* TRITONBACKEND_GetBackendAttribute(Object* backend, Object* attribute) {
  (void)backend;
  const uint64_t gpu = 0;
  CHECK(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attribute, 2, 1, &gpu, 1));
  CHECK(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attribute, 1, 3, NULL, 0));
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attribute, true);
}

static Error* complete(Object* model) {
  static const char text[] =
      "{\"max_batch_size\": 4, \"input\": [{\"name\": \"IN\", \"data_type\": \"TYPE_FP32\", \"dims\": [-1]}],"
      " \"output\": [{\"name\": \"OUT\", \"data_type\": \"TYPE_FP32\", \"dims\": [-1]}]}";
  Object* message;
  CHECK(TRITONSERVER_MessageNewFromSerializedJson(&message, text, sizeof text - 1));
  CHECK(TRITONBACKEND_ModelSetConfig(model, 1, message));
  return TRITONSERVER_MessageDelete(message);
}

static bool config_has(Object* model, const char* text) {
  Object* message;
  const char* json;
  size_t size;
  TRITONBACKEND_ModelConfig(model, 1, &message);
  TRITONSERVER_MessageSerializeToJson(message, &json, &size);
  const bool found = strstr(json, text) != NULL;
  TRITONSERVER_MessageDelete(message);
  return found;
}

Error* TRITONBACKEND_ModelInitialize(Object* model) {
  bool auto_complete;
  CHECK(TRITONBACKEND_ModelAutoCompleteConfig(model, &auto_complete));
  if (config_has(model, "\"refuse_model\"")) return TRITONSERVER_ErrorNew(INVALID_ARG, "probe refuses this model");
  if (auto_complete && config_has(model, "\"input\": []")) {
    CHECK(complete(model));
    if (!config_has(model, "\"optional\": false")) return TRITONSERVER_ErrorNew(INVALID_ARG, "fields are missing");
  }
  Metrics* metrics = calloc(1, sizeof *metrics);
  CHECK(TRITONBACKEND_ModelSetState(model, metrics));
  Object* label = TRITONSERVER_ParameterNew("color", STRING, "green");
  const Object* labels[] = {label};
  const double bounds[] = {1, 10};
  Object* args;
  CHECK(TRITONSERVER_MetricFamilyNew(&metrics->requests_family, 0, "probe_requests", "Requests of the probe"));
  CHECK(TRITONSERVER_MetricNew(&metrics->requests, metrics->requests_family, labels, 1));
  CHECK(TRITONSERVER_MetricFamilyNew(&metrics->sizes_family, 2, "probe_sizes", "Sizes of inputs"));
  CHECK(TRITONSERVER_MetricArgsNew(&args));
  CHECK(TRITONSERVER_MetricArgsSetHistogram(args, bounds, 2));
  CHECK(TRITONSERVER_MetricNewWithArgs(&metrics->sizes, metrics->sizes_family, labels, 1, args));
  CHECK(TRITONSERVER_MetricArgsDelete(args));
  TRITONSERVER_ParameterDelete(label);
  return NULL;
}

Error* TRITONBACKEND_ModelFinalize(Object* model) {
  Metrics* metrics;
  CHECK(TRITONBACKEND_ModelState(model, (void**)&metrics));
  if (metrics == NULL) return NULL;
  CHECK(TRITONSERVER_MetricDelete(metrics->requests));
  CHECK(TRITONSERVER_MetricFamilyDelete(metrics->requests_family));
  CHECK(TRITONSERVER_MetricDelete(metrics->sizes));
  CHECK(TRITONSERVER_MetricFamilyDelete(metrics->sizes_family));
  free(metrics);
  return NULL;
}

Error* TRITONBACKEND_ModelInstanceReady(Object* instance) {
  const char* name;
  CHECK(TRITONBACKEND_ModelInstanceName(instance, &name));
  return strstr(name, "tired") ? TRITONSERVER_ErrorNew(UNAVAILABLE, "probe is tired") : NULL;
}

static const char* parameter(Object* request, const char* wanted) {
  uint32_t count;
  TRITONBACKEND_RequestParameterCount(request, &count);
  for (uint32_t index = 0; index < count; ++index) {
    const char* key;
    int type;
    const void* value;
    TRITONBACKEND_RequestParameter(request, index, &key, &type, &value);
    if (type == STRING && strcmp(key, wanted) == 0) return value;
  }
  return "";
}

static Error* add_output(Object* response, const char* name, const float* in, const int64_t* shape, uint32_t rank, uint64_t size) {
  Object* output;
  float* out;
  int type = 0;
  int64_t id = 0;
  CHECK(TRITONBACKEND_ResponseOutput(response, &output, name, FP32, shape, rank));
  CHECK(TRITONBACKEND_OutputBuffer(output, (void**)&out, size, &type, &id));
  for (uint64_t index = 0; index < size / sizeof *in; ++index) out[index] = 2 * in[index];
  return NULL;
}

typedef struct {
  const float* data;
  const int64_t* shape;
  uint32_t rank;
  uint64_t size;
} Tensor;

static Error* read_input(Object* request, const char* name, Tensor* tensor) {
  Object* input;
  int type = 0;
  int64_t id = 0;
  CHECK(TRITONBACKEND_RequestInput(request, name, &input));
  CHECK(TRITONBACKEND_InputProperties(input, NULL, NULL, &tensor->shape, &tensor->rank, &tensor->size, NULL));
  return TRITONBACKEND_InputBuffer(input, 0, (const void**)&tensor->data, &tensor->size, &type, &id);
}

static Error* answer(Object* request, Object* response) {
  Tensor in;
  CHECK(read_input(request, "IN", &in));
  CHECK(add_output(response, "OUT", in.data, in.shape, in.rank, in.size));
  return TRITONBACKEND_ResponseSend(response, FINAL, NULL);
}

static void* answer_later(void* argument) {
  Object *request = argument, *response;
  usleep(20000);
  if (TRITONBACKEND_ResponseNew(&response, request) == NULL) answer(request, response);
  TRITONBACKEND_RequestRelease(request, RELEASE_ALL);
  return NULL;
}

static void* drop_later(void* argument) {
  Object* response;
  usleep(20000);
  TRITONBACKEND_ResponseNew(&response, argument);
  TRITONBACKEND_ResponseDelete(response);
  TRITONBACKEND_RequestRelease(argument, RELEASE_ALL);
  return NULL;
}

static void* wait_for_cancellation(void* argument) {
  Object *request = argument, *response;
  bool cancelled = false;
  while (!cancelled) {
    TRITONBACKEND_RequestIsCancelled(request, &cancelled);
    usleep(1000);
  }
  TRITONBACKEND_ResponseNew(&response, request);
  Error* error = TRITONSERVER_ErrorNew(7, "probe was cancelled");
  TRITONBACKEND_ResponseSend(response, FINAL, error);
  TRITONSERVER_ErrorDelete(error);
  TRITONBACKEND_RequestRelease(request, RELEASE_ALL);
  return NULL;
}

static void* stream(void* argument) {
  Object *request = argument, *factory, *response;
  Tensor in;
  read_input(request, "IN", &in);
  const int64_t shape[] = {1, 1};
  const int count = (int)in.data[0];
  TRITONBACKEND_ResponseFactoryNew(&factory, request);
  TRITONBACKEND_RequestRelease(request, RELEASE_ALL);
  for (int index = 0; index < count; ++index) {
    const float value = (float)index;
    TRITONBACKEND_ResponseNewFromFactory(&response, factory);
    add_output(response, "OUT", &value, shape, 2, sizeof value);
    TRITONBACKEND_ResponseSend(response, 0, NULL);
  }
  TRITONBACKEND_ResponseFactorySendFlags(factory, FINAL);
  TRITONBACKEND_ResponseFactoryDelete(factory);
  return NULL;
}

static Error* in_thread(void* (*work)(void*), Object* request) {
  pthread_t thread;
  pthread_create(&thread, NULL, work, request);
  pthread_detach(thread);
  return NULL;
}

static Error* describe(Object* request, Object* response) {
  const char* id;
  uint64_t correlation, timeout;
  uint32_t flags, parameters, outputs;
  CHECK(TRITONBACKEND_RequestId(request, &id));
  CHECK(TRITONBACKEND_RequestCorrelationId(request, &correlation));
  CHECK(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout));
  CHECK(TRITONBACKEND_RequestFlags(request, &flags));
  CHECK(TRITONBACKEND_RequestParameterCount(request, &parameters));
  CHECK(TRITONBACKEND_RequestOutputCount(request, &outputs));
  char text[200];
  snprintf(text, sizeof text, "%s %lu %lu %u %u %u", id, correlation, timeout, flags, parameters, outputs);
  CHECK(TRITONBACKEND_ResponseSetStringParameter(response, "request", text));
  CHECK(TRITONBACKEND_ResponseSetIntParameter(response, "int", -5));
  CHECK(TRITONBACKEND_ResponseSetBoolParameter(response, "bool", true));
  CHECK(TRITONBACKEND_ResponseSetDoubleParameter(response, "double", 0.5));
  return answer(request, response);
}

/* STATE_OUT = 2 * (STATE_IN + IN), and OUT the same before it is doubled. */
static Error* accumulate(Object* request, Object* response) {
  Tensor in, before;
  Object* state;
  float* data;
  int type = 0;
  int64_t id = 0;
  CHECK(read_input(request, "IN", &in));
  CHECK(read_input(request, "STATE_IN", &before));
  CHECK(TRITONBACKEND_StateNew(&state, request, "STATE_OUT", FP32, in.shape, in.rank));
  CHECK(TRITONBACKEND_StateBuffer(state, (void**)&data, in.size, &type, &id));
  CHECK(TRITONBACKEND_ResponseSetIntParameter(response, "shared", data == before.data ? (int64_t)data : 0));
  data[0] = before.data[0] + in.data[0];
  CHECK(add_output(response, "OUT", data, in.shape, in.rank, in.size));
  CHECK(TRITONBACKEND_ResponseSend(response, FINAL, NULL));
  return TRITONBACKEND_StateUpdate(state);
}

static Error* use_server(Object* instance, Object* request, Object* response) {
  Object *model, *server, *backend, *manager;
  void* memory;
  Object* metrics;
  CHECK(TRITONBACKEND_ModelInstanceModel(instance, &model));
  CHECK(TRITONBACKEND_ModelBackend(model, &backend));
  CHECK(TRITONBACKEND_BackendMemoryManager(backend, &manager));
  CHECK(TRITONBACKEND_MemoryManagerAllocate(manager, &memory, 0, 0, 100));
  CHECK(TRITONBACKEND_MemoryManagerFree(manager, memory, 0, 0));
  Error* refused = TRITONBACKEND_MemoryManagerAllocate(manager, &memory, 2, 0, 100);
  if (refused == NULL) return TRITONSERVER_ErrorNew(INTERNAL, "GPU memory was allocated");
  TRITONSERVER_ErrorDelete(refused);
  CHECK(TRITONBACKEND_ModelServer(model, &server));
  CHECK(TRITONSERVER_ServerMetrics(server, &metrics));
  return answer(request, response);
}

/* Answers once two executions have met here. */
static Error* meet(Object* request, Object* response) {
  static _Atomic int present = 0;
  ++present;
  for (int waited_ms = 0; present < 2; ++waited_ms) {
    if (waited_ms == 5000) return TRITONSERVER_ErrorNew(INTERNAL, "nobody came");
    usleep(1000);
  }
  return answer(request, response);
}

/* Releases a request to be executed again, and sends a response after that. */
static Error* answer_and_continue(Object* request) {
  Object* response;
  CHECK(TRITONBACKEND_ResponseNew(&response, request));
  CHECK(TRITONBACKEND_RequestRelease(request, RESCHEDULE));
  return TRITONBACKEND_ResponseSend(response, 0, NULL);
}

/* Answers and releases a request, or leaves that to a thread. */
static Error* execute_one(Object* instance, Object* request) {
  Object *response, *trace;
  const char* mode = parameter(request, "mode");
  if (strcmp(mode, "late") == 0) return in_thread(answer_later, request);
  if (strcmp(mode, "drop late") == 0) return in_thread(drop_later, request);
  if (strcmp(mode, "cancel") == 0) return in_thread(wait_for_cancellation, request);
  if (strcmp(mode, "stream") == 0) return in_thread(stream, request);
  if (strcmp(mode, "drop") == 0) return TRITONBACKEND_RequestRelease(request, RELEASE_ALL);
  if (strcmp(mode, "reschedule") == 0) return TRITONBACKEND_RequestRelease(request, RESCHEDULE);
  if (strcmp(mode, "answer and continue") == 0) return answer_and_continue(request);
  if (strcmp(mode, "crash") == 0) abort();
  CHECK(TRITONBACKEND_ResponseNew(&response, request));
  CHECK(TRITONBACKEND_RequestTrace(request, &trace));
  if (trace) CHECK(TRITONSERVER_InferenceTraceReportActivity(trace, 12345, "PROBED"));
  Error* failed = strcmp(mode, "fail") == 0 ? TRITONSERVER_ErrorNew(INVALID_ARG, "probe was asked to fail")
                  : strcmp(mode, "odd text") == 0 ? TRITONSERVER_ErrorNew(INTERNAL, "caf\xc3\xa9 \xff \xed\xa0\x80 \xf0\x9f\x98\x80 \xe2\x82")
                  : strcmp(mode, "describe") == 0 ? describe(request, response)
                  : strcmp(mode, "state") == 0    ? accumulate(request, response)
                  : strcmp(mode, "meet") == 0     ? meet(request, response)
                  : strcmp(mode, "server") == 0   ? use_server(instance, request, response)
                                                  : answer(request, response);
  if (failed) {
    TRITONBACKEND_ResponseSend(response, FINAL, failed);
    TRITONSERVER_ErrorDelete(failed);
  }
  return TRITONBACKEND_RequestRelease(request, RELEASE_ALL);
}

Error* TRITONBACKEND_ModelInstanceExecute(Object* instance, Object** requests, uint32_t count) {
  Object* model;
  Metrics* metrics;
  CHECK(TRITONBACKEND_ModelInstanceModel(instance, &model));
  CHECK(TRITONBACKEND_ModelState(model, (void**)&metrics));
  if (strcmp(parameter(requests[0], "mode"), "refuse") == 0)
    return TRITONSERVER_ErrorNew(UNAVAILABLE, "probe refuses this batch");
  TRITONSERVER_LogMessage(0, "/somewhere/probe.c", 7, "probe executes");
  CHECK(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, 1000, 2000, 3000, 4000));
  for (uint32_t index = 0; index < count; ++index) {
    Tensor in;
    CHECK(read_input(requests[index], "IN", &in));
    CHECK(TRITONSERVER_MetricIncrement(metrics->requests, 1));
    CHECK(TRITONSERVER_MetricObserve(metrics->sizes, (double)in.size));
    CHECK(execute_one(instance, requests[index]));
  }
  return NULL;
}
