// nereid_*: what the server calls (`backends/cpp/library.py`). Messages are MessagePack; results are errors, null for
// none, which the caller deletes.
#include <cstdlib>

#include "core.h"

using Backend = TRITONBACKEND_Backend;
using Model = TRITONBACKEND_Model;
using Instance = TRITONBACKEND_ModelInstance;
using Request = TRITONBACKEND_Request;

namespace {
Error* unreadable(const std::exception& failure) { return error(INTERNAL, std::string("message: ") + failure.what()); }
}  // namespace

API int nereid_descriptor() { return Queue::global().descriptor(); }
API const char* nereid_take(size_t* size) {
  const std::string& message = Queue::global().take();
  *size = message.size();
  return message.data();
}
API void nereid_cancel(uint64_t token) { cancel(token); }
API void nereid_free(void* memory) { std::free(memory); }

API void nereid_backend_delete(Backend* backend) { delete backend; }
API Error* nereid_backend_new(
    const char* path, const char* name, const char* location, const char* config, Backend** result) {
  auto backend = std::make_unique<Backend>();
  backend->name = name;
  backend->location = location;
  backend->config.json = config;
  CHECK(load_library(path, &backend->library));
  void* library = backend->library;
  find(library, "TRITONBACKEND_Initialize", backend->initialize);
  find(library, "TRITONBACKEND_Finalize", backend->finalize);
  find(library, "TRITONBACKEND_ModelInitialize", backend->model_initialize);
  find(library, "TRITONBACKEND_ModelFinalize", backend->model_finalize);
  find(library, "TRITONBACKEND_ModelInstanceInitialize", backend->instance_initialize);
  find(library, "TRITONBACKEND_ModelInstanceFinalize", backend->instance_finalize);
  find(library, "TRITONBACKEND_ModelInstanceReady", backend->instance_ready);
  find(library, "TRITONBACKEND_ModelInstanceExecute", backend->instance_execute);
  find(library, "TRITONBACKEND_GetBackendAttribute", backend->attributes);
  if (backend->instance_execute == nullptr)
    return error(NOT_FOUND, "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in shared library");
  if (backend->initialize != nullptr) CHECK(backend->initialize(backend.get()));
  if (backend->attributes != nullptr) CHECK(backend->attributes(backend.get(), backend.get()));
  *result = backend.release();
  return nullptr;
}
API Error* nereid_backend_finalize(Backend* backend) {
  return backend->finalize == nullptr ? nullptr : backend->finalize(backend);
}
API bool nereid_loads_in_parallel(Backend* backend) { return backend->parallel_loading; }

API void nereid_model_delete(Model* model) { delete model; }
API Error* nereid_model_new(Backend* backend, const char* data, size_t size, Model** result) try {
  auto model = std::make_unique<Model>();
  model->backend = backend;
  Reader reader(data, size);
  reader.array();
  model->name = reader.text();
  model->version = reader.unsigned_integer();
  model->directory = reader.text();
  model->config = reader.text();
  model->auto_complete = reader.boolean();
  *result = model.release();
  return nullptr;
} catch (const std::exception& failure) {
  return unreadable(failure);
}
API Error* nereid_model_initialize(Model* model) {
  return model->backend->model_initialize == nullptr ? nullptr : model->backend->model_initialize(model);
}
API Error* nereid_model_finalize(Model* model) {
  return model->backend->model_finalize == nullptr ? nullptr : model->backend->model_finalize(model);
}
API const char* nereid_model_config(Model* model) { return model->config.c_str(); }

// Sets the configuration as the server has completed it: its text, whether it is decoupled, names of states.
API Error* nereid_model_configure(Model* model, const char* data, size_t size) try {
  Reader reader(data, size);
  reader.array();
  model->config = reader.text();
  model->decoupled = reader.boolean();
  model->states.resize(reader.array());
  for (std::string& name : model->states) name = reader.text();
  return nullptr;
} catch (const std::exception& failure) {
  return unreadable(failure);
}

API void nereid_instance_delete(Instance* instance) { delete instance; }
API Error* nereid_instance_new(Model* model, const char* data, size_t size, Instance** result) try {
  auto instance = std::make_unique<Instance>();
  instance->model = model;
  Reader reader(data, size);
  reader.array();
  instance->name = reader.text();
  instance->kind = static_cast<int>(reader.integer());
  instance->device_id = static_cast<int>(reader.integer());
  instance->passive = reader.boolean();
  instance->host_policy.json = reader.text();
  instance->profiles.resize(reader.array());
  for (std::string& name : instance->profiles) name = reader.text();
  instance->secondary_devices.resize(reader.array());
  for (auto& [kind, id] : instance->secondary_devices) {
    reader.array();
    kind = reader.text();
    id = reader.integer();
  }
  *result = instance.release();
  return nullptr;
} catch (const std::exception& failure) {
  return unreadable(failure);
}
API Error* nereid_instance_initialize(Instance* instance) {
  const BackendFunction initialize = instance->model->backend->instance_initialize;
  return initialize == nullptr ? nullptr : initialize(instance);
}
API Error* nereid_instance_finalize(Instance* instance) {
  const BackendFunction finalize = instance->model->backend->instance_finalize;
  return finalize == nullptr ? nullptr : finalize(instance);
}
API bool nereid_has_readiness(Backend* backend) { return backend->instance_ready != nullptr; }
API Error* nereid_instance_ready(Instance* instance) { return instance->model->backend->instance_ready(instance); }

namespace {
std::vector<std::unique_ptr<Request>> read_requests(
    Reader& reader, Model* model, uint64_t token, const std::shared_ptr<Execution>& execution) {
  std::vector<std::unique_ptr<Request>> requests(reader.array());
  for (size_t index = 0; index < requests.size(); ++index) {
    requests[index] = read_request(reader, model, token + index);
    requests[index]->index = index;
    requests[index]->exchange->execution = execution;
  }
  return requests;
}

// Requests of a failed execution are the server's again: the backend has not released them.
void take_back(Execution& execution) {
  std::vector<Request*> requests;
  {
    const std::lock_guard lock(execution.mutex);
    requests.swap(execution.requests);
  }
  for (Request* request : requests) {
    if (request == nullptr) continue;
    request->exchange->finished = true;
    delete request;
  }
}
}  // namespace

// Executes a batch. The result, valid until the next execution of the instance: [[code, or -1 for success, text,
// start and end of computing, bytes of large outputs], events]. The first request has the given token, the others
// those that follow.
API const char* nereid_execute(
    Instance* instance, const char* data, size_t size, uint64_t token, char* arena, size_t arena_size,
    size_t* result_size) try {
  const auto execution = std::make_shared<Execution>();
  execution->arena = arena;
  execution->arena_size = arena_size;
  Reader reader(data, size);
  auto requests = read_requests(reader, instance->model, token, execution);
  for (auto& request : requests) execution->requests.push_back(request.release());
  std::vector<void*> pointers(execution->requests.begin(), execution->requests.end());
  {
    const std::lock_guard lock(instance->mutex);
    instance->current = execution;
  }
  const std::unique_ptr<Error> failure(instance->model->backend->instance_execute(
      instance, pointers.data(), static_cast<uint32_t>(pointers.size())));
  if (failure != nullptr) take_back(*execution);
  const std::lock_guard lock(execution->mutex);
  execution->open = false;
  Writer head;
  head.array(2);
  head.array(5);
  head.integer(failure == nullptr ? -1 : failure->code);
  head.text(failure == nullptr ? "" : failure->text);
  head.unsigned_integer(execution->compute_start_ns);
  head.unsigned_integer(execution->compute_end_ns);
  head.unsigned_integer(execution->wanted);
  instance->reply = head.bytes + message_of(execution->count, execution->events);
  execution->events.clear();
  *result_size = instance->reply.size();
  return instance->reply.data();
} catch (const std::exception& failure) {
  instance->reply = failure.what();
  *result_size = 0;
  return instance->reply.c_str();
}

