// TRITONSERVER_InferenceRequest*, InferenceResponse*, ResponseAllocator*: what a backend sets and reads of calls.
#include <algorithm>

#include "core.h"

API Error* TRITONSERVER_InferenceRequestNew(
    CallRequest** request, TRITONSERVER_Server*, const char* model, int64_t version) {
  auto made = std::make_unique<CallRequest>();
  made->model = model;
  made->version = version < 0 ? "" : std::to_string(version);
  std::string answer;
  CHECK(ask(answer, "known", model, version));
  *request = made.release();
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestDelete(CallRequest* request) {
  delete request;
  return nullptr;
}

#define GETTER(OBJECT, NAME, TYPE, VALUE)                    \
  API Error* TRITONSERVER_##NAME(OBJECT* self, TYPE* value) { \
    *value = VALUE;                                          \
    return nullptr;                                          \
  }
#define SETTER(NAME, TYPE, FIELD)                                                     \
  API Error* TRITONSERVER_InferenceRequestSet##NAME(CallRequest* self, TYPE value) { \
    self->FIELD = value;                                                              \
    return nullptr;                                                                   \
  }
GETTER(CallRequest, InferenceRequestId, const char*, self->id.c_str())
GETTER(CallRequest, InferenceRequestFlags, uint32_t, self->flags)
GETTER(CallRequest, InferenceRequestPriorityUInt64, uint64_t, self->priority)
GETTER(CallRequest, InferenceRequestPriority, uint32_t, static_cast<uint32_t>(self->priority))
GETTER(CallRequest, InferenceRequestTimeoutMicroseconds, uint64_t, self->timeout_us)
SETTER(Id, const char*, id)
SETTER(Flags, uint32_t, flags)
SETTER(Priority, uint32_t, priority)
SETTER(PriorityUInt64, uint64_t, priority)
SETTER(TimeoutMicroseconds, uint64_t, timeout_us)
#undef SETTER

API Error* TRITONSERVER_InferenceRequestCorrelationId(CallRequest* self, uint64_t* id) {
  if (self->correlation_is_text) return error(INVALID_ARG, "given request's correlation id is not an unsigned int");
  *id = self->correlation_id;
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestCorrelationIdString(CallRequest* self, const char** id) {
  if (!self->correlation_is_text) return error(INVALID_ARG, "given request's correlation id is not a string");
  *id = self->correlation_text.c_str();
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestSetCorrelationId(CallRequest* self, uint64_t id) {
  self->correlation_is_text = false;
  self->correlation_id = id;
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestSetCorrelationIdString(CallRequest* self, const char* id) {
  if (std::strlen(id) > 128)
    return error(UNSUPPORTED, "string correlation ID cannot be longer than 128 characters");
  self->correlation_is_text = true;
  self->correlation_text = id;
  return nullptr;
}

#define CALL_PARAMETER(NAME, TYPE)                                                                                   \
  API Error* TRITONSERVER_InferenceRequestSet##NAME##Parameter(CallRequest* self, const char* name, TYPE value) { \
    self->parameters.push_back(TRITONSERVER_Parameter::of(name, value));                                              \
    return nullptr;                                                                                                   \
  }
CALL_PARAMETER(String, const char*)
CALL_PARAMETER(Int, int64_t)
CALL_PARAMETER(Bool, bool)
CALL_PARAMETER(Double, double)

namespace {
auto find_input(CallRequest* self, const std::string& name) {
  return std::find_if(self->inputs.begin(), self->inputs.end(), [&](const auto& each) { return each.name == name; });
}
Error* no_input(const CallRequest* self, const char* name) {
  return error(INVALID_ARG, self->prefix() + "input '" + name + "' does not exist in request");
}
Error* append(CallRequest* self, const char* name, const void* data, size_t size, int memory_type) {
  const auto input = find_input(self, name);
  if (input == self->inputs.end()) return no_input(self, name);
  if (memory_type == MEMORY_GPU) return error(UNSUPPORTED, "inputs of calls must be in memory of the CPU");
  if (size > 0) input->parts.emplace_back(static_cast<const char*>(data), size);
  return nullptr;
}
}  // namespace

API Error* TRITONSERVER_InferenceRequestAddInput(
    CallRequest* self, const char* name, int datatype, const int64_t* shape, uint64_t rank) {
  if (find_input(self, name) != self->inputs.end())
    return error(INVALID_ARG, self->prefix() + "input '" + name + "' already exists in request");
  self->inputs.push_back({name, datatype, {shape, shape + rank}, {}});
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestRemoveInput(CallRequest* self, const char* name) {
  const auto input = find_input(self, name);
  if (input == self->inputs.end()) return no_input(self, name);
  self->inputs.erase(input);
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestRemoveAllInputs(CallRequest* self) {
  self->inputs.clear();
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestAppendInputData(
    CallRequest* self, const char* name, const void* data, size_t size, int memory_type, int64_t) {
  return append(self, name, data, size, memory_type);
}
API Error* TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
    CallRequest* self, const char* name, const void* data, size_t size, int memory_type, int64_t, const char*) {
  return append(self, name, data, size, memory_type);
}
API Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    CallRequest* self, const char* name, const void* data, TRITONSERVER_BufferAttributes* attributes) {
  return append(self, name, data, attributes->byte_size, attributes->memory_type);
}
API Error* TRITONSERVER_InferenceRequestRemoveAllInputData(CallRequest* self, const char* name) {
  const auto input = find_input(self, name);
  if (input == self->inputs.end()) return no_input(self, name);
  input->parts.clear();
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestAddRequestedOutput(CallRequest* self, const char* name) {
  if (std::find(self->outputs.begin(), self->outputs.end(), name) != self->outputs.end())
    return error(INVALID_ARG, self->prefix() + "output '" + name + "' already exists in request");
  self->outputs.emplace_back(name);
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestRemoveRequestedOutput(CallRequest* self, const char* name) {
  self->outputs.erase(std::remove(self->outputs.begin(), self->outputs.end(), name), self->outputs.end());
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(CallRequest* self) {
  self->outputs.clear();
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestSetReleaseCallback(CallRequest* self, ReleaseRequest release, void* context) {
  self->release = release;
  self->release_context = context;
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestSetResponseCallback(
    CallRequest* self, Allocator* allocator, void* allocator_context, Complete complete, void* context) {
  self->allocator = allocator;
  self->allocator_context = allocator_context;
  self->complete = complete;
  self->complete_context = context;
  return nullptr;
}

API Error* TRITONSERVER_ResponseAllocatorNew(
    Allocator** allocator, decltype(Allocator::allocate) allocate_buffer, decltype(Allocator::release) release,
    decltype(Allocator::start) start) {
  *allocator = new Allocator{allocate_buffer, release, start};
  return nullptr;
}
API Error* TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
    Allocator* self, decltype(Allocator::attributes) attributes) {
  self->attributes = attributes;
  return nullptr;
}
API Error* TRITONSERVER_ResponseAllocatorSetQueryFunction(Allocator* self, decltype(Allocator::query) query) {
  self->query = query;
  return nullptr;
}
API Error* TRITONSERVER_ResponseAllocatorDelete(Allocator* self) {
  delete self;
  return nullptr;
}

API Error* TRITONSERVER_InferenceResponseDelete(CallResponse* self) {
  delete self;
  return nullptr;
}
API Error* TRITONSERVER_InferenceResponseError(CallResponse* self) { return self->failure.get(); }
GETTER(CallResponse, InferenceResponseId, const char*, self->id.c_str())
GETTER(CallResponse, InferenceResponseParameterCount, uint32_t, static_cast<uint32_t>(self->parameters.size()))
GETTER(CallResponse, InferenceResponseOutputCount, uint32_t, static_cast<uint32_t>(self->outputs.size()))
#undef GETTER
API Error* TRITONSERVER_InferenceResponseModel(CallResponse* self, const char** name, int64_t* version) {
  *name = self->model.c_str();
  *version = self->version;
  return nullptr;
}
API Error* TRITONSERVER_InferenceResponseParameter(
    CallResponse* self, uint32_t index, const char** name, int* type, const void** value) {
  const auto& all = self->parameters;
  if (index >= all.size()) return out_of_bounds(index, all.size(), "response has", "parameters");
  *name = all[index].name.c_str();
  *type = all[index].type;
  *value = all[index].value();
  return nullptr;
}
API Error* TRITONSERVER_InferenceResponseOutput(
    CallResponse* self, uint32_t index, const char** name, int* datatype, const int64_t** shape, uint64_t* rank,
    const void** data, size_t* size, int* memory_type, int64_t* memory_type_id, void** context) {
  const auto& all = self->outputs;
  if (index >= all.size()) return out_of_bounds(index, all.size(), "response has", "outputs");
  const CallOutput& output = all[index];
  *name = output.name.c_str();
  *datatype = output.datatype;
  *shape = output.shape.data();
  *rank = output.shape.size();
  *data = output.data;
  *size = output.attributes.byte_size;
  *memory_type = output.attributes.memory_type;
  *memory_type_id = output.attributes.memory_type_id;
  *context = output.context;
  return nullptr;
}
