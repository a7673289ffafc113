// TRITONBACKEND_Request*, Input*, State*: what a backend reads of a request, and what it keeps for the next one.
#include <algorithm>

#include "core.h"

using Request = TRITONBACKEND_Request;
using Input = TRITONBACKEND_Input;
using State = TRITONBACKEND_State;

namespace {
void read_input(Reader& reader, Input& input) {
  reader.array();
  input.name = reader.text();
  input.datatype = datatype_number(reader.text());
  reader.get(input.shape);
  if (reader.is_binary()) {
    const std::string_view data = reader.binary();
    input.size = data.size();
    input.copy = std::make_unique<char[]>(data.size() + 1);
    std::memcpy(input.copy.get(), data.data(), data.size());
    input.data = input.copy.get();
  } else {  // the server keeps that memory until it hears CLOSED
    uint64_t address;
    reader.fields(address, input.size);
    input.data = reinterpret_cast<const void*>(address);
  }
  input.attributes.byte_size = input.size;
}
}  // namespace

Error* out_of_bounds(uint32_t index, size_t count, const char* has, const char* what, const std::string& prefix) {
  return error(INVALID_ARG, prefix + "out of bounds index " + std::to_string(index) + ": " + has + " " +
                                std::to_string(count) + " " + what);
}

std::unique_ptr<Request> read_request(Reader& reader, TRITONBACKEND_Model* model, uint64_t token) {
  auto request = std::make_unique<Request>();
  request->exchange = std::make_shared<Exchange>();
  request->exchange->model = model;
  reader.array();
  request->exchange->id = reader.text();
  if ((request->correlation_is_text = reader.is_text())) {
    request->correlation_text = reader.text();
  } else {
    request->correlation_id = reader.unsigned_integer();
  }
  reader.get(request->flags);
  reader.get(request->timeout_us);
  reader.get(request->traced);
  const size_t parameters = reader.map();
  for (size_t index = 0; index < parameters; ++index) request->parameters.push_back(TRITONSERVER_Parameter::read(reader));
  request->inputs.resize(reader.array());
  for (Input& input : request->inputs) read_input(reader, input);
  reader.get(request->outputs);
  request->trace.exchange = request->exchange.get();
  request->exchange->token = token;  // last: from now on the server must hear of its end
  return request;
}

API Error* TRITONBACKEND_RequestId(Request* self, const char** id) {
  *id = self->exchange->id.c_str();
  return nullptr;
}
API Error* TRITONBACKEND_RequestIsCancelled(Request* self, bool* is_cancelled) {
  *is_cancelled = self->exchange->is_cancelled();
  return nullptr;
}
API Error* TRITONBACKEND_RequestCorrelationId(Request* self, uint64_t* id) {
  if (self->correlation_is_text)
    return error(INVALID_ARG, self->exchange->prefix() + "correlation ID in request is not an unsigned int");
  *id = self->correlation_id;
  return nullptr;
}
API Error* TRITONBACKEND_RequestCorrelationIdString(Request* self, const char** id) {
  if (!self->correlation_is_text)
    return error(INVALID_ARG, self->exchange->prefix() + "correlation ID in request is not a string");
  *id = self->correlation_text.c_str();
  return nullptr;
}
API Error* TRITONBACKEND_InferenceRequestTimeoutMicroseconds(Request* self, uint64_t* timeout) {
  *timeout = self->timeout_us;
  return nullptr;
}
API Error* TRITONBACKEND_RequestFlags(Request* self, uint32_t* flags) {
  *flags = self->flags;
  return nullptr;
}
API Error* TRITONBACKEND_RequestTrace(Request* self, TRITONSERVER_InferenceTrace** trace) {
  *trace = self->traced ? &self->trace : nullptr;
  return nullptr;
}

#define COUNT(NAME, LIST)                                                     \
  API Error* TRITONBACKEND_Request##NAME##Count(Request* self, uint32_t* count) { \
    *count = static_cast<uint32_t>(self->LIST.size());                        \
    return nullptr;                                                           \
  }
#define BOUNDED(LIST, WHAT)           \
  if (index >= self->LIST.size()) \
    return out_of_bounds(index, self->LIST.size(), "request has", WHAT, self->exchange->prefix())
COUNT(Parameter, parameters)
COUNT(Input, inputs)
COUNT(Output, outputs)

API Error* TRITONBACKEND_RequestParameter(
    Request* self, uint32_t index, const char** key, int* type, const void** value) {
  BOUNDED(parameters, "parameters");
  const TRITONSERVER_Parameter& parameter = self->parameters[index];
  *key = parameter.name.c_str();
  *type = parameter.type;
  *value = parameter.value();
  return nullptr;
}
API Error* TRITONBACKEND_RequestInputByIndex(Request* self, uint32_t index, Input** input) {
  *input = nullptr;
  BOUNDED(inputs, "inputs");
  *input = &self->inputs[index];
  return nullptr;
}
API Error* TRITONBACKEND_RequestInputName(Request* self, uint32_t index, const char** name) {
  *name = nullptr;
  BOUNDED(inputs, "inputs");
  *name = self->inputs[index].name.c_str();
  return nullptr;
}
API Error* TRITONBACKEND_RequestInput(Request* self, const char* name, Input** input) {
  *input = nullptr;
  for (Input& each : self->inputs)
    if (each.name == name) *input = &each;
  if (*input != nullptr) return nullptr;
  return error(INVALID_ARG, self->exchange->prefix() + "unknown request input name " + name);
}
API Error* TRITONBACKEND_RequestOutputName(Request* self, uint32_t index, const char** name) {
  *name = nullptr;
  BOUNDED(outputs, "requested outputs");
  *name = self->outputs[index].c_str();
  return nullptr;
}
API Error* TRITONBACKEND_RequestOutputBufferProperties(
    Request*, const char*, size_t*, int* memory_type, int64_t* memory_type_id) {
  *memory_type = MEMORY_CPU;
  *memory_type_id = 0;
  return nullptr;
}

namespace {
constexpr const char* NOT_ITERATIVE =
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to "
    "handle such a flag.";
}  // namespace

API Error* TRITONBACKEND_RequestRelease(Request* self, uint32_t flags) {
  const bool again = (flags & RELEASE_RESCHEDULE) != 0;
  if (again && !self->exchange->model->iterative) return error(INVALID_ARG, NOT_ITERATIVE);  // not released
  const std::unique_ptr<Request> request(self);
  const std::shared_ptr<Exchange> exchange = self->exchange;
  {
    const std::lock_guard lock(exchange->execution->mutex);
    exchange->execution->requests[self->index] = nullptr;
  }
  if (again) {  // its response may follow
    exchange->rescheduled = true;
    exchange->put(Writer::of(RESCHEDULED, exchange->token).bytes, true);
  }
  return nullptr;
}

API Error* TRITONBACKEND_InputPropertiesForHostPolicy(
    Input* self, const char*, const char** name, int* datatype, const int64_t** shape, uint32_t* rank,
    uint64_t* size, uint32_t* buffers) {
  if (name != nullptr) *name = self->name.c_str();
  if (datatype != nullptr) *datatype = self->datatype;
  if (shape != nullptr) *shape = self->shape.data();
  if (rank != nullptr) *rank = static_cast<uint32_t>(self->shape.size());
  if (size != nullptr) *size = self->size;
  if (buffers != nullptr) *buffers = 1;
  return nullptr;
}
API Error* TRITONBACKEND_InputProperties(
    Input* self, const char** name, int* datatype, const int64_t** shape, uint32_t* rank, uint64_t* size,
    uint32_t* buffers) {
  return TRITONBACKEND_InputPropertiesForHostPolicy(self, nullptr, name, datatype, shape, rank, size, buffers);
}
API Error* TRITONBACKEND_InputBufferForHostPolicy(
    Input* self, const char*, uint32_t index, const void** buffer, uint64_t* size, int* memory_type,
    int64_t* memory_type_id) {
  if (index > 0) {
    *buffer = nullptr;
    *size = 0;
    return error(INVALID_ARG, "out of bounds index " + std::to_string(index) + ": input has 1 buffer");
  }
  *buffer = self->data;
  *size = self->size;
  *memory_type = MEMORY_CPU;
  *memory_type_id = 0;
  return nullptr;
}
API Error* TRITONBACKEND_InputBuffer(
    Input* self, uint32_t index, const void** buffer, uint64_t* size, int* memory_type, int64_t* memory_type_id) {
  return TRITONBACKEND_InputBufferForHostPolicy(self, nullptr, index, buffer, size, memory_type, memory_type_id);
}
API Error* TRITONBACKEND_InputBufferAttributes(
    Input* self, uint32_t index, const void** buffer, TRITONSERVER_BufferAttributes** attributes) {
  uint64_t size;
  *attributes = &self->attributes;
  return TRITONBACKEND_InputBuffer(
      self, index, buffer, &size, &self->attributes.memory_type, &self->attributes.memory_type_id);
}

API Error* TRITONBACKEND_StateNew(
    State** state, Request* request, const char* name, int datatype, const int64_t* shape, uint32_t rank) {
  Exchange& exchange = *request->exchange;
  const auto& names = exchange.model->states;
  if (names.empty())
    return error(INVALID_ARG, std::string("unable to add state '") + name +
                                  "'. State configuration is missing for model '" + exchange.model->name + "'.");
  if (std::none_of(names.begin(), names.end(), [&](const auto& each) { return each.first == name; }))
    return error(INVALID_ARG, std::string("state '") + name + "' is not a valid state name.");
  const std::lock_guard lock(exchange.mutex);
  State& into = exchange.states[name];
  into.name = name;
  into.datatype = datatype;
  into.shape.assign(shape, shape + rank);
  into.exchange = &exchange;
  const auto shared = exchange.shared.find(name);
  into.data = shared == exchange.shared.end() ? std::make_shared<std::vector<char>>() : shared->second;
  *state = &into;
  return nullptr;
}
API Error* TRITONBACKEND_StateBuffer(
    State* self, void** buffer, uint64_t size, int* memory_type, int64_t* memory_type_id) {
  self->data->resize(size);
  self->attributes.byte_size = size;
  *buffer = self->data->data();
  *memory_type = MEMORY_CPU;
  *memory_type_id = 0;
  return nullptr;
}
API Error* TRITONBACKEND_StateBufferAttributes(State* self, TRITONSERVER_BufferAttributes** attributes) {
  *attributes = &self->attributes;
  return nullptr;
}
API Error* TRITONBACKEND_StateUpdate(State* self) {
  const Writer event = Writer::of(
      STATE, self->exchange->token, self->name, datatype_name(self->datatype), self->shape,
      Bytes{self->data->data(), self->data->size()});
  self->exchange->put(event.bytes, !self->exchange->model->decoupled);
  return nullptr;
}
