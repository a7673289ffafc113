/* A batching strategy for tests: as many requests in a batch as its first model's version says. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct Error Error;
typedef void Object;
Error* TRITONSERVER_ErrorNew(int code, const char* text);
Error* TRITONBACKEND_ModelVersion(Object* model, uint64_t* version);
Error* TRITONBACKEND_RequestInputCount(Object* request, uint32_t* count);

Error* TRITONBACKEND_ModelBatcherInitialize(Object** batcher, Object* model) {
  uint64_t* limit = malloc(sizeof *limit);
  *batcher = limit;
  return TRITONBACKEND_ModelVersion(model, limit);
}
Error* TRITONBACKEND_ModelBatcherFinalize(Object* batcher) {
  free(batcher);
  return 0;
}
Error* TRITONBACKEND_ModelBatchInitialize(const Object* batcher, void** batch) {
  uint64_t* left = malloc(sizeof *left);
  *left = *(const uint64_t*)batcher;
  *batch = left;
  return 0;
}
Error* TRITONBACKEND_ModelBatchFinalize(void* batch) {
  free(batch);
  return 0;
}
Error* TRITONBACKEND_ModelBatchIncludeRequest(Object* request, void* batch, bool* included) {
  uint64_t* left = batch;
  uint32_t inputs;
  Error* failed = TRITONBACKEND_RequestInputCount(request, &inputs);
  if (failed) return failed;
  if (inputs != 1) return TRITONSERVER_ErrorNew(3, "strategy expects one input");
  *included = *left > 0;
  if (*included) --*left;
  return 0;
}
