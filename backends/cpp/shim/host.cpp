// nereid_*: what the server calls (`backends/cpp/library.py`). Messages are MessagePack; results are errors, null for
// none, which the caller deletes.
#include <cstdlib>

#include "core.h"

using Backend = TRITONBACKEND_Backend;
using Model = TRITONBACKEND_Model;
using Instance = TRITONBACKEND_ModelInstance;
using Request = TRITONBACKEND_Request;

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
#define FIND(NAME, FIELD) find(library, "TRITONBACKEND_" #NAME, backend->FIELD)
  FIND(Initialize, initialize);
  FIND(Finalize, finalize);
  FIND(ModelInitialize, model_initialize);
  FIND(ModelFinalize, model_finalize);
  FIND(ModelInstanceInitialize, instance_initialize);
  FIND(ModelInstanceFinalize, instance_finalize);
  FIND(ModelInstanceReady, instance_ready);
  FIND(ModelInstanceExecute, instance_execute);
  FIND(GetBackendAttribute, attributes);
  if (backend->instance_execute == nullptr)
    return error(NOT_FOUND, "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in shared library");
  if (backend->initialize != nullptr) CHECK(backend->initialize(backend.get()));
  if (backend->attributes != nullptr) CHECK(backend->attributes(backend.get(), backend.get()));
  *result = backend.release();
  return nullptr;
}
API bool nereid_loads_in_parallel(Backend* backend) { return backend->parallel_loading; }
// Returns kind, count and GPUs of each preferred instance group, valid until the next call of the thread.
API const char* nereid_preferred_groups(Backend* backend, size_t* size) {
  static thread_local std::string result;
  Writer out;
  out.array(backend->preferred_groups.size());
  for (const auto& [kind, count, gpus] : backend->preferred_groups) {
    out.array(3);
    out.add(kind);
    out.add(count);
    out.add(gpus);
  }
  result = std::move(out.bytes);
  *size = result.size();
  return result.data();
}
API bool nereid_has_readiness(Backend* backend) { return backend->instance_ready != nullptr; }

API void nereid_model_delete(Model* model) { delete model; }
API Error* nereid_model_new(Backend* backend, const char* data, size_t size, Model** result) {
  auto model = std::make_unique<Model>();
  model->backend = backend;
  CHECK(read_fields(data, size, model->name, model->version, model->directory, model->config, model->auto_complete));
  *result = model.release();
  return nullptr;
}
API const char* nereid_model_config(Model* model) { return model->config.c_str(); }

// Sets the configuration as the server has completed it: its text, whether it is decoupled and iterative, states.
API Error* nereid_model_configure(Model* model, const char* data, size_t size) {
  return read_fields(data, size, model->config, model->decoupled, model->iterative, model->states);
}

API void nereid_instance_delete(Instance* instance) { delete instance; }
API Error* nereid_instance_new(Model* model, const char* data, size_t size, Instance** result) {
  auto instance = std::make_unique<Instance>();
  instance->model = model;
  CHECK(read_fields(
      data, size, instance->name, instance->kind, instance->device_id, instance->passive, instance->host_policy.json,
      instance->profiles, instance->secondary_devices));
  *result = instance.release();
  return nullptr;
}
API void nereid_sequence_end(Instance* instance, const char* data, size_t size) {
  instance->shared.erase(std::string(data, size));
}

// A function of the backend's that it may lack.
#define STEP(NAME, OBJECT, FUNCTION) \
  API Error* nereid_##NAME(OBJECT* self) { return FUNCTION == nullptr ? nullptr : FUNCTION(self); }
STEP(backend_finalize, Backend, self->finalize)
STEP(model_initialize, Model, self->backend->model_initialize)
STEP(model_finalize, Model, self->backend->model_finalize)
STEP(instance_initialize, Instance, self->model->backend->instance_initialize)
STEP(instance_finalize, Instance, self->model->backend->instance_finalize)
STEP(instance_ready, Instance, self->model->backend->instance_ready)

namespace {
// Copies inputs that are states into buffers that stay where they are while their sequence lives, and that the
// backend gets for the new states too.
void share_states(Instance* instance, Request& request) {
  for (const auto& [output, name] : instance->model->states)
    for (TRITONBACKEND_Input& input : request.inputs) {
      if (name.empty() || input.name != name) continue;
      Memory& memory = instance->shared[request.sequence()][output];
      if (memory == nullptr) memory = std::make_shared<std::vector<char>>();
      const auto* data = static_cast<const char*>(input.data);
      memory->assign(data, data + input.size);
      input.data = memory->data();
      request.exchange->shared[output] = memory;
    }
}

std::vector<std::unique_ptr<Request>> read_requests(
    Reader& reader, Instance* instance, uint64_t token, const std::shared_ptr<Execution>& execution) {
  std::vector<std::unique_ptr<Request>> requests(reader.array());
  for (size_t index = 0; index < requests.size(); ++index) {
    requests[index] = read_request(reader, instance->model, token + index);
    requests[index]->index = index;
    requests[index]->exchange->execution = execution;
    share_states(instance, *requests[index]);
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
  auto requests = read_requests(reader, instance, token, execution);
  for (auto& request : requests) execution->requests.push_back(request.release());
  std::vector<void*> pointers(execution->requests.begin(), execution->requests.end());
  {
    const std::lock_guard lock(instance->mutex);
    instance->current = execution;
  }
  executing = execution.get();
  const std::unique_ptr<Error> failure(instance->model->backend->instance_execute(
      instance, pointers.data(), static_cast<uint32_t>(pointers.size())));
  executing = nullptr;
  if (failure != nullptr) take_back(*execution);
  const std::lock_guard lock(execution->mutex);
  execution->open = false;
  Writer reply;
  reply.array(2);
  reply.bytes += Writer::of(
                     failure == nullptr ? -1 : failure->code, failure == nullptr ? "" : failure->text,
                     execution->compute_start_ns, execution->compute_end_ns, execution->wanted)
                     .bytes;
  instance->reply = reply.bytes + message_of(execution->count, execution->events);
  execution->events.clear();
  *result_size = instance->reply.size();
  return instance->reply.data();
} catch (const std::exception& failure) {
  instance->reply = failure.what();
  *result_size = 0;
  return instance->reply.c_str();
}

