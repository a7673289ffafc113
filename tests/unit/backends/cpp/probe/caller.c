/* A backend for tests that calls the model named by the request parameter "model" with its input IN, as x.
 *
 * OUT is the first output of the last response. The response's parameter "trail" has the callbacks in their order. The
 * parameter "mode" asks for something else; see `execute_one`. It declares what it uses of Triton's API itself. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Error Error;
typedef void Object;
enum { INTERNAL = 1, FP32 = 11, FINAL = 1, RELEASE_ALL = 1, STRING = 0 };
typedef Error* Allocate(Object*, const char*, size_t, int, int64_t, void*, void**, void**, int*, int64_t*);
typedef Error* Release(Object*, void*, void*, size_t, int, int64_t);
typedef Error* Start(Object*, void*);

Error* TRITONSERVER_ErrorNew(int code, const char* text);
void TRITONSERVER_ErrorDelete(Error* error);
int TRITONSERVER_ErrorCode(Error* error);
const char* TRITONSERVER_ErrorMessage(Error* error);
Error* TRITONSERVER_MessageSerializeToJson(Object* message, const char** text, size_t* size);
Error* TRITONSERVER_MessageDelete(Object* message);
Error* TRITONSERVER_ResponseAllocatorNew(Object** allocator, Allocate* allocate, Release* release, Start* start);
Error* TRITONSERVER_ResponseAllocatorDelete(Object* allocator);
Error* TRITONSERVER_InferenceRequestNew(Object** request, Object* server, const char* model, int64_t version);
Error* TRITONSERVER_InferenceRequestDelete(Object* request);
Error* TRITONSERVER_InferenceRequestSetId(Object* request, const char* id);
Error* TRITONSERVER_InferenceRequestSetCorrelationId(Object* request, uint64_t id);
Error* TRITONSERVER_InferenceRequestSetFlags(Object* request, uint32_t flags);
Error* TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(Object* request, uint64_t timeout);
Error* TRITONSERVER_InferenceRequestSetIntParameter(Object* request, const char* name, int64_t value);
Error* TRITONSERVER_InferenceRequestAddInput(
    Object* request, const char* name, int type, const int64_t* shape, uint64_t rank);
Error* TRITONSERVER_InferenceRequestAppendInputData(
    Object* request, const char* name, const void* data, size_t size, int type, int64_t id);
Error* TRITONSERVER_InferenceRequestAddRequestedOutput(Object* request, const char* name);
Error* TRITONSERVER_InferenceRequestSetReleaseCallback(
    Object* request, void (*release)(Object*, uint32_t, void*), void* context);
Error* TRITONSERVER_InferenceRequestSetResponseCallback(
    Object* request, Object* allocator, void* allocator_context, void (*complete)(Object*, uint32_t, void*),
    void* context);
Error* TRITONSERVER_InferenceRequestCancel(Object* request);
Error* TRITONSERVER_InferenceRequestIsCancelled(Object* request, bool* cancelled);
Error* TRITONSERVER_InferenceTraceSpawnChildTrace(Object* trace, Object** child);
Error* TRITONSERVER_ServerInferAsync(Object* server, Object* request, Object* trace);
Error* TRITONSERVER_InferenceResponseError(Object* response);
Error* TRITONSERVER_InferenceResponseOutputCount(Object* response, uint32_t* count);
Error* TRITONSERVER_InferenceResponseOutput(
    Object* response, uint32_t index, const char** name, int* datatype, const int64_t** shape, uint64_t* rank,
    const void** data, size_t* size, int* memory_type, int64_t* memory_type_id, void** context);
Error* TRITONSERVER_InferenceResponseDelete(Object* response);
Error* TRITONSERVER_ServerModelIsReady(Object* server, const char* model, int64_t version, bool* ready);
Error* TRITONSERVER_ServerModelTransactionProperties(
    Object* server, const char* model, int64_t version, uint32_t* flags, void** details);
Error* TRITONSERVER_ServerModelBatchProperties(
    Object* server, const char* model, int64_t version, uint32_t* flags, void** details);
Error* TRITONSERVER_ServerModelMetadata(Object* server, const char* model, int64_t version, Object** metadata);
Error* TRITONSERVER_ServerLoadModel(Object* server, const char* model);
Error* TRITONSERVER_ServerUnloadModel(Object* server, const char* model);
Error* TRITONBACKEND_ModelServer(Object* model, Object** server);
Error* TRITONBACKEND_ModelInstanceModel(Object* instance, Object** model);
Error* TRITONBACKEND_RequestParameterCount(Object* request, uint32_t* count);
Error* TRITONBACKEND_RequestParameter(Object* request, uint32_t index, const char** key, int* type, const void** value);
Error* TRITONBACKEND_RequestTrace(Object* request, Object** trace);
Error* TRITONBACKEND_RequestInput(Object* request, const char* name, Object** input);
Error* TRITONBACKEND_RequestRelease(Object* request, uint32_t flags);
Error* TRITONBACKEND_InputProperties(
    Object* input, const char** name, int* type, const int64_t** shape, uint32_t* rank, uint64_t* size, uint32_t* buffers);
Error* TRITONBACKEND_InputBuffer(Object* input, uint32_t index, const void** data, uint64_t* size, int* type, int64_t* id);
Error* TRITONBACKEND_ResponseNew(Object** response, Object* request);
Error* TRITONBACKEND_ResponseOutput(
    Object* response, Object** output, const char* name, int type, const int64_t* shape, uint32_t rank);
Error* TRITONBACKEND_OutputBuffer(Object* output, void** data, uint64_t size, int* type, int64_t* id);
Error* TRITONBACKEND_ResponseSetStringParameter(Object* response, const char* name, const char* value);
Error* TRITONBACKEND_ResponseSend(Object* response, uint32_t flags, Error* error);

#define CHECK(X)               \
  do {                         \
    Error* failed = (X);       \
    if (failed) return failed; \
  } while (0)

typedef struct {
  Object *server, *request, *allocator;
  const char *model, *mode;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  bool done, released;
  char trail[4000], text[400];
  int code;
  char* data;
  size_t size;
} Call;

static void note(Call* call, const char* what) {
  pthread_mutex_lock(&call->mutex);
  if (strlen(call->trail) + strlen(what) + 2 < sizeof call->trail) strcat(strcat(call->trail, what), " ");
  pthread_mutex_unlock(&call->mutex);
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

static Error* start(Object* allocator, void* context) {
  (void)allocator;
  note(context, "start");
  return NULL;
}

static Error* allocate(
    Object* allocator, const char* name, size_t size, int type, int64_t id, void* context, void** buffer,
    void** buffer_context, int* actual_type, int64_t* actual_id) {
  (void)allocator;
  Call* call = context;
  if (strcmp(call->mode, "refuse buffers") == 0) return TRITONSERVER_ErrorNew(INTERNAL, "no buffers here");
  note(call, name);
  *buffer = size ? malloc(size) : NULL;
  *buffer_context = call;
  *actual_type = type;
  *actual_id = id;
  return NULL;
}

static Error* release_buffer(Object* allocator, void* buffer, void* context, size_t size, int type, int64_t id) {
  (void)allocator, (void)size, (void)type, (void)id;
  note(context, "freed");
  free(buffer);
  return NULL;
}

static Error* call_model(Call* call, Object* original);

static void read_response(Call* call, Object* response) {
  Error* error = TRITONSERVER_InferenceResponseError(response);
  uint32_t count = 0;
  if (error) {
    call->code = TRITONSERVER_ErrorCode(error);
    snprintf(call->text, sizeof call->text, "%s", TRITONSERVER_ErrorMessage(error));
    return;
  }
  TRITONSERVER_InferenceResponseOutputCount(response, &count);
  if (count == 0) return;
  const char* name;
  const int64_t* shape;
  uint64_t rank;
  const void* data;
  int datatype, type;
  int64_t id;
  void* context;
  TRITONSERVER_InferenceResponseOutput(
      response, 0, &name, &datatype, &shape, &rank, &data, &call->size, &type, &id, &context);
  free(call->data);
  call->data = malloc(call->size + 1);
  memcpy(call->data, data, call->size);
}

static void complete(Object* response, uint32_t flags, void* context) {
  Call* call = context;
  note(call, response == NULL ? "nothing" : "response");
  if (response) {
    read_response(call, response);
    TRITONSERVER_InferenceResponseDelete(response);
  }
  if ((flags & FINAL) == 0) return;
  note(call, "final");
  pthread_mutex_lock(&call->mutex);
  call->done = true;
  pthread_cond_broadcast(&call->changed);
  pthread_mutex_unlock(&call->mutex);
}

/* Calls the model once more before it goes on, and blocks the thread of the callback for it. */
static void complete_nested(Object* response, uint32_t flags, void* context) {
  Call* outer = context;
  Call inner = {.server = outer->server, .allocator = outer->allocator, .model = outer->model, .mode = "",
                .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
  Error* error = call_model(&inner, outer->request);
  note(outer, error || inner.code ? "nested failed" : "nested");
  free(inner.data);
  complete(response, flags, context);
}

static void released(Object* request, uint32_t flags, void* context) {
  Call* call = context;
  note(call, flags == RELEASE_ALL ? "released" : "odd");
  TRITONSERVER_InferenceRequestDelete(request);
  pthread_mutex_lock(&call->mutex);
  call->released = true;
  pthread_cond_broadcast(&call->changed);
  pthread_mutex_unlock(&call->mutex);
}

static Error* fill(Call* call, Object* request, Object* original) {
  Object* input;
  const int64_t* shape;
  uint32_t rank;
  int type = 0;
  uint64_t size;
  int64_t id = 0;
  const char* data;
  CHECK(TRITONBACKEND_RequestInput(original, "IN", &input));
  CHECK(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &rank, &size, NULL));
  CHECK(TRITONBACKEND_InputBuffer(input, 0, (const void**)&data, &size, &type, &id));
  CHECK(TRITONSERVER_InferenceRequestSetId(request, "c1"));
  CHECK(TRITONSERVER_InferenceRequestSetCorrelationId(request, 77));
  CHECK(TRITONSERVER_InferenceRequestSetFlags(request, 2));
  CHECK(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, 5000));
  CHECK(TRITONSERVER_InferenceRequestSetIntParameter(request, "n", -3));
  CHECK(TRITONSERVER_InferenceRequestAddInput(request, "x", FP32, shape, rank));
  CHECK(TRITONSERVER_InferenceRequestAppendInputData(request, "x", data, size / 2, 0, 0));
  CHECK(TRITONSERVER_InferenceRequestAppendInputData(request, "x", data + size / 2, size - size / 2, 0, 0));
  CHECK(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "y"));
  CHECK(TRITONSERVER_InferenceRequestSetReleaseCallback(request, released, call));
  return TRITONSERVER_InferenceRequestSetResponseCallback(
      request, call->allocator, call, strcmp(call->mode, "nested") == 0 ? complete_nested : complete, call);
}

static Error* send(Call* call, Object* request, Object* original) {
  Object *trace = NULL, *child = NULL;
  bool cancelled;
  CHECK(fill(call, request, original));
  if (strcmp(call->mode, "trace") == 0) {
    CHECK(TRITONBACKEND_RequestTrace(original, &trace));
    CHECK(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child));
  }
  CHECK(TRITONSERVER_ServerInferAsync(call->server, request, child));
  if (strcmp(call->mode, "cancel") != 0) return NULL;
  CHECK(TRITONSERVER_InferenceRequestCancel(request));
  CHECK(TRITONSERVER_InferenceRequestIsCancelled(request, &cancelled));
  note(call, cancelled ? "cancelled" : "odd");
  return NULL;
}

static Error* call_model(Call* call, Object* original) {
  Object* request;
  call->request = original;
  CHECK(TRITONSERVER_InferenceRequestNew(&request, call->server, call->model, -1));
  Error* error = send(call, request, original);
  if (error) {
    TRITONSERVER_InferenceRequestDelete(request);
    return error;
  }
  pthread_mutex_lock(&call->mutex);
  while (!call->done || !call->released) pthread_cond_wait(&call->changed, &call->mutex);
  pthread_mutex_unlock(&call->mutex);
  return call->code ? TRITONSERVER_ErrorNew(call->code, call->text) : NULL;
}

static Error* ask(Call* call) {
  bool ready;
  uint32_t transactions, batching;
  Object* metadata;
  const char* json;
  size_t size;
  CHECK(TRITONSERVER_ServerModelIsReady(call->server, call->model, -1, &ready));
  CHECK(TRITONSERVER_ServerModelTransactionProperties(call->server, call->model, 1, &transactions, NULL));
  CHECK(TRITONSERVER_ServerModelBatchProperties(call->server, call->model, -1, &batching, NULL));
  CHECK(TRITONSERVER_ServerModelMetadata(call->server, call->model, -1, &metadata));
  CHECK(TRITONSERVER_MessageSerializeToJson(metadata, &json, &size));
  snprintf(call->trail, sizeof call->trail, "%d %u %u %.*s", ready, transactions, batching, (int)size, json);
  return TRITONSERVER_MessageDelete(metadata);
}

static Error* reload(Call* call) {
  CHECK(TRITONSERVER_ServerUnloadModel(call->server, call->model));
  return TRITONSERVER_ServerLoadModel(call->server, call->model);
}

static Error* answer(Call* call, Object* response) {
  Object* output;
  void* out;
  const int64_t shape[] = {1, (int64_t)(call->size / 4)};
  int type = 0;
  int64_t id = 0;
  CHECK(TRITONBACKEND_ResponseSetStringParameter(response, "trail", call->trail));
  if (call->data == NULL) return NULL;
  CHECK(TRITONBACKEND_ResponseOutput(response, &output, "OUT", FP32, shape, 2));
  CHECK(TRITONBACKEND_OutputBuffer(output, &out, call->size, &type, &id));
  memcpy(out, call->data, call->size);
  return NULL;
}

static void execute_one(Object* server, Object* request) {
  Object* response;
  Call call = {.server = server, .model = parameter(request, "model"), .mode = parameter(request, "mode"),
               .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
  TRITONBACKEND_ResponseNew(&response, request);
  TRITONSERVER_ResponseAllocatorNew(&call.allocator, allocate, release_buffer, start);
  Error* error = strcmp(call.mode, "ask") == 0      ? ask(&call)
                 : strcmp(call.mode, "reload") == 0 ? reload(&call)
                                                    : call_model(&call, request);
  if (!error) error = answer(&call, response);
  TRITONBACKEND_ResponseSend(response, FINAL, error);
  if (error) TRITONSERVER_ErrorDelete(error);
  TRITONSERVER_ResponseAllocatorDelete(call.allocator);
  free(call.data);
  TRITONBACKEND_RequestRelease(request, RELEASE_ALL);
}

static struct {
  Object *server, *request;
} late;

static void* execute_later(void* unused) {
  execute_one(late.server, late.request);
  return unused;
}

Error* TRITONBACKEND_ModelInstanceExecute(Object* instance, Object** requests, uint32_t count) {
  Object *model, *server;
  CHECK(TRITONBACKEND_ModelInstanceModel(instance, &model));
  CHECK(TRITONBACKEND_ModelServer(model, &server));
  for (uint32_t index = 0; index < count; ++index) {
    pthread_t thread;
    late.server = server;
    late.request = requests[index];
    if (strcmp(parameter(requests[index], "mode"), "late") == 0) {
      pthread_create(&thread, NULL, execute_later, NULL);
      pthread_detach(thread);
    } else {
      execute_one(server, requests[index]);
    }
  }
  return NULL;
}
