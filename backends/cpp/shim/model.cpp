// TRITONBACKEND_Backend*, Model*, ModelInstance*: what a backend asks about itself, its models and instances.
#include <algorithm>
#include <cstdlib>

#include "core.h"

using Backend = TRITONBACKEND_Backend;
using Model = TRITONBACKEND_Model;
using Instance = TRITONBACKEND_ModelInstance;

// A function that returns one value of an object.
#define GETTER(NAME, OBJECT, TYPE, VALUE)                    \
  API Error* TRITONBACKEND_##NAME(OBJECT* self, TYPE* value) { \
    *value = VALUE;                                          \
    return nullptr;                                          \
  }
#define SETTER(NAME, OBJECT, TYPE, FIELD)                   \
  API Error* TRITONBACKEND_##NAME(OBJECT* self, TYPE value) { \
    self->FIELD = value;                                    \
    return nullptr;                                         \
  }

API Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor) {
  *major = BACKEND_API_MAJOR;
  *minor = BACKEND_API_MINOR;
  return nullptr;
}

GETTER(BackendName, Backend, const char*, self->name.c_str())
GETTER(BackendConfig, Backend, TRITONSERVER_Message*, &self->config)
GETTER(BackendExecutionPolicy, Backend, int, self->execution_policy)
SETTER(BackendSetExecutionPolicy, Backend, int, execution_policy)
GETTER(BackendMemoryManager, Backend, TRITONBACKEND_MemoryManager*, &self->memory)
GETTER(BackendState, Backend, void*, self->state)
SETTER(BackendSetState, Backend, void*, state)
API Error* TRITONBACKEND_BackendArtifacts(Backend* self, int* type, const char** location) {
  *type = 0;  // a directory
  *location = self->location.c_str();
  return nullptr;
}

API Error* TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
    Backend* self, int kind, uint64_t count, const uint64_t* gpus, uint64_t size) {
  self->preferred_groups.push_back({kind, count, {gpus, gpus + (gpus == nullptr ? 0 : size)}});
  return nullptr;
}
SETTER(BackendAttributeSetParallelModelInstanceLoading, Backend, bool, parallel_loading)

API Error* TRITONBACKEND_MemoryManagerAllocate(
    TRITONBACKEND_MemoryManager*, void** buffer, int type, int64_t, uint64_t size) {
  if (type != MEMORY_CPU)
    return error(UNSUPPORTED, "only memory of the CPU is allocated for backends, not pinned or GPU memory");
  *buffer = std::aligned_alloc(64, (size + 64) & ~uint64_t{63});
  return *buffer == nullptr ? error(UNAVAILABLE, "unable to allocate " + std::to_string(size) + " bytes") : nullptr;
}
API Error* TRITONBACKEND_MemoryManagerFree(TRITONBACKEND_MemoryManager*, void* buffer, int, int64_t) {
  std::free(buffer);
  return nullptr;
}

GETTER(ModelName, Model, const char*, self->name.c_str())
GETTER(ModelVersion, Model, uint64_t, self->version)
GETTER(ModelAutoCompleteConfig, Model, bool, self->auto_complete)
GETTER(ModelBackend, Model, Backend*, self->backend)
API Error* TRITONBACKEND_ModelServer(Model*, TRITONSERVER_Server** server) {
  static TRITONSERVER_Server this_one;
  *server = &this_one;
  return nullptr;
}
GETTER(ModelState, Model, void*, self->state)
SETTER(ModelSetState, Model, void*, state)
API Error* TRITONBACKEND_ModelRepository(Model* self, int* type, const char** location) {
  *type = 0;
  *location = self->directory.c_str();
  return nullptr;
}
Error* check_config_version(uint32_t version) {
  if (version == 1) return nullptr;
  return error(INVALID_ARG, "model configuration version " + std::to_string(version) +
                                " not supported, supported versions are: 1");
}
API Error* TRITONBACKEND_ModelConfig(Model* self, uint32_t version, TRITONSERVER_Message** config) {
  CHECK(check_config_version(version));
  *config = new TRITONSERVER_Message{self->config};
  return nullptr;
}
API Error* TRITONBACKEND_ModelSetConfig(Model* self, uint32_t version, TRITONSERVER_Message* config) {
  CHECK(check_config_version(version));
  // A backend reads it again, and counts on every field.
  return ask(self->config, "completed", self->config.c_str(), -1, config->json);
}
API Error* TRITONBACKEND_ModelReportMemoryUsage(Model*, TRITONSERVER_BufferAttributes**, uint32_t) { return nullptr; }

GETTER(ModelInstanceName, Instance, const char*, self->name.c_str())
GETTER(ModelInstanceKind, Instance, int, self->kind)
GETTER(ModelInstanceDeviceId, Instance, int32_t, self->device_id)
GETTER(ModelInstanceHostPolicy, Instance, TRITONSERVER_Message*, &self->host_policy)
GETTER(ModelInstanceIsPassive, Instance, bool, self->passive)
GETTER(ModelInstanceModel, Instance, Model*, self->model)
GETTER(ModelInstanceState, Instance, void*, self->state)
SETTER(ModelInstanceSetState, Instance, void*, state)
GETTER(ModelInstanceProfileCount, Instance, uint32_t, static_cast<uint32_t>(self->profiles.size()))
GETTER(ModelInstanceSecondaryDeviceCount, Instance, uint32_t, static_cast<uint32_t>(self->secondary_devices.size()))

API Error* TRITONBACKEND_ModelInstanceProfileName(Instance* self, uint32_t index, const char** name) {
  *name = nullptr;
  const size_t count = self->profiles.size();
  if (index >= count)
    return out_of_bounds(index, count, "instance is configured with", "profiles");
  *name = self->profiles[index].c_str();
  return nullptr;
}
API Error* TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
    Instance* self, uint32_t index, const char** kind, int64_t* id) {
  const size_t count = self->secondary_devices.size();
  if (index >= count)
    return out_of_bounds(index, count, "instance is configured with", "secondary devices");
  *kind = self->secondary_devices[index].first.c_str();
  *id = self->secondary_devices[index].second;
  return nullptr;
}
API Error* TRITONBACKEND_ModelInstanceReportMemoryUsage(Instance*, TRITONSERVER_BufferAttributes**, uint32_t) {
  return nullptr;
}

namespace {
// The server counts requests and batches itself; the times of computing it cannot know.
void report(Instance* instance, uint64_t compute_start_ns, uint64_t compute_end_ns) {
  std::shared_ptr<Execution> execution;
  {
    const std::lock_guard lock(instance->mutex);
    execution = instance->current;
  }
  if (execution == nullptr || compute_start_ns == 0 || compute_end_ns < compute_start_ns) return;
  const std::lock_guard lock(execution->mutex);
  uint64_t& start = execution->compute_start_ns;
  start = start == 0 ? compute_start_ns : std::min(start, compute_start_ns);
  execution->compute_end_ns = std::max(execution->compute_end_ns, compute_end_ns);
}
}  // namespace

API Error* TRITONBACKEND_ModelInstanceReportStatistics(
    Instance* self, TRITONBACKEND_Request*, bool success, uint64_t, uint64_t compute_start_ns,
    uint64_t compute_end_ns, uint64_t) {
  if (success) report(self, compute_start_ns, compute_end_ns);
  return nullptr;
}
API Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(
    Instance* self, uint64_t, uint64_t, uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t) {
  report(self, compute_start_ns, compute_end_ns);
  return nullptr;
}
