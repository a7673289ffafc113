/* A backend for tests that reports the times of one response of each outcome, and those of IN: start, start of the
 * output and end of one more. Its answer has no outputs; it is an error if those of IN are refused. */
#include <stdint.h>
#include <stddef.h>

typedef struct Error Error;
typedef void Object;
enum { INTERNAL = 1, CANCELLED = 7, FINAL = 1, RELEASE_ALL = 1 };

Error* TRITONSERVER_ErrorNew(int code, const char* text);
void TRITONSERVER_ErrorDelete(Error* error);
Error* TRITONBACKEND_RequestInput(Object* request, const char* name, Object** input);
Error* TRITONBACKEND_InputBuffer(Object* input, uint32_t index, const void** data, uint64_t* size, int* type, int64_t* id);
Error* TRITONBACKEND_RequestRelease(Object* request, uint32_t flags);
Error* TRITONBACKEND_ResponseNew(Object** response, Object* request);
Error* TRITONBACKEND_ResponseSend(Object* response, uint32_t flags, Error* error);
Error* TRITONBACKEND_ResponseFactoryNew(Object** factory, Object* request);
Error* TRITONBACKEND_ResponseFactoryDelete(Object* factory);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsNew(Object** times);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsDelete(Object* times);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(Object* times, Object* instance);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(Object* times, Object* factory);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(Object* times, uint64_t ns);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(Object* times, uint64_t ns);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(Object* times, uint64_t ns);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetError(Object* times, Error* error);
Error* TRITONBACKEND_ModelInstanceReportResponseStatistics(Object* times);

static Error* report(Object* factory, uint64_t start, uint64_t output, uint64_t end, Error* failure) {
  Object* times;
  TRITONBACKEND_ModelInstanceResponseStatisticsNew(&times);
  TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(times, NULL);
  TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(times, factory);
  TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(times, start);
  if (output) TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(times, output);
  TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(times, end);
  TRITONBACKEND_ModelInstanceResponseStatisticsSetError(times, failure);
  Error* refused = TRITONBACKEND_ModelInstanceReportResponseStatistics(times);
  TRITONBACKEND_ModelInstanceResponseStatisticsDelete(times);
  return refused;
}

static void execute_one(Object* request) {
  Object *factory, *input, *response;
  const float* in = NULL;
  uint64_t size = 0;
  int64_t id = 0;
  int type = 0;
  TRITONBACKEND_RequestInput(request, "IN", &input);
  TRITONBACKEND_InputBuffer(input, 0, (const void**)&in, &size, &type, &id);
  TRITONBACKEND_ResponseFactoryNew(&factory, request);
  Error* failure = TRITONSERVER_ErrorNew(INTERNAL, "failed");
  Error* cancelled = TRITONSERVER_ErrorNew(CANCELLED, "cancelled");
  report(factory, 1000, 1010, 1110, NULL);
  report(factory, 1000, 1010, 1110, failure);
  report(factory, 1000, 0, 1110, failure);
  report(factory, 1000, 0, 1110, NULL);
  report(factory, 1000, 1010, 1110, cancelled);
  Error* refused = report(factory, (uint64_t)in[0], (uint64_t)in[1], (uint64_t)in[2], NULL);
  TRITONBACKEND_ResponseNew(&response, request);
  TRITONBACKEND_ResponseSend(response, FINAL, refused);
  if (refused) TRITONSERVER_ErrorDelete(refused);
  TRITONSERVER_ErrorDelete(failure);
  TRITONSERVER_ErrorDelete(cancelled);
  TRITONBACKEND_ResponseFactoryDelete(factory);
}

Error* TRITONBACKEND_ModelInstanceExecute(Object* instance, Object** requests, uint32_t count) {
  (void)instance;
  for (uint32_t index = 0; index < count; ++index) {
    execute_one(requests[index]);
    TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL);
  }
  return NULL;
}
