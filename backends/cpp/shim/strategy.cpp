// A batching strategy: a library that defines five functions, for models of any backend.
#include "core.h"

namespace {
struct Strategy {
  TRITONBACKEND_Model* model = nullptr;
  void* batcher = nullptr;
  Error* (*batcher_initialize)(void**, void*) = nullptr;
  Error* (*batcher_finalize)(void*) = nullptr;
  Error* (*batch_initialize)(const void*, void**) = nullptr;
  Error* (*batch_finalize)(void*) = nullptr;
  Error* (*include)(void*, void*, bool*) = nullptr;
};
}  // namespace

API Error* nereid_strategy_new(const char* path, TRITONBACKEND_Model* model, Strategy** result) {
  void* library;
  CHECK(load_library(path, &library));
  auto strategy = std::make_unique<Strategy>();
  strategy->model = model;
  const bool complete = find(library, "TRITONBACKEND_ModelBatcherInitialize", strategy->batcher_initialize) &
                        find(library, "TRITONBACKEND_ModelBatcherFinalize", strategy->batcher_finalize) &
                        find(library, "TRITONBACKEND_ModelBatchInitialize", strategy->batch_initialize) &
                        find(library, "TRITONBACKEND_ModelBatchFinalize", strategy->batch_finalize) &
                        find(library, "TRITONBACKEND_ModelBatchIncludeRequest", strategy->include);
  if (!complete)
    return error(INVALID_ARG, std::string(path) + " does not define all required custom batching functions for model " +
                                  model->name);
  CHECK(strategy->batcher_initialize(&strategy->batcher, model));
  *result = strategy.release();
  return nullptr;
}
API Error* nereid_strategy_delete(Strategy* strategy) {
  const std::unique_ptr<Strategy> owned(strategy);
  return strategy->batcher_finalize(strategy->batcher);
}
API Error* nereid_batch_new(Strategy* strategy, void** batch) {
  return strategy->batch_initialize(strategy->batcher, batch);
}
API Error* nereid_batch_delete(Strategy* strategy, void* batch) { return strategy->batch_finalize(batch); }
API Error* nereid_include(Strategy* strategy, const char* data, size_t size, void* batch, bool* included) try {
  Reader reader(data, size);
  const auto request = read_request(reader, strategy->model, 0);
  return strategy->include(request.get(), batch, included);
} catch (const std::exception& failure) {
  return error(INTERNAL, std::string("message: ") + failure.what());
}
