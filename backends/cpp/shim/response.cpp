// TRITONBACKEND_Response*, ResponseFactory*, Output*: what a backend answers.
#include <cstdlib>

#include "core.h"

struct TRITONBACKEND_Output {
  std::string name;
  int datatype = 0;
  std::vector<int64_t> shape;
  std::shared_ptr<Exchange> exchange;
  uint64_t size = 0;
  char* data = nullptr;
  bool in_arena = false;
  TRITONSERVER_BufferAttributes attributes;

  ~TRITONBACKEND_Output() { release(); }
  void release() {
    if (!in_arena) std::free(data);
    data = nullptr;
  }
};

struct TRITONBACKEND_ResponseFactory {
  std::shared_ptr<Exchange> exchange;
};

struct TRITONBACKEND_Response {
  std::shared_ptr<Exchange> exchange;
  std::vector<TRITONSERVER_Parameter> parameters;
  std::vector<std::unique_ptr<TRITONBACKEND_Output>> outputs;
};

using Factory = TRITONBACKEND_ResponseFactory;
using Output = TRITONBACKEND_Output;
using Response = TRITONBACKEND_Response;

namespace {
// Small data go along; large ones as [offset in the arena, size], or as [address, size, 1] of memory to be freed.
void write(Writer& event, Output& output) {
  event.array(4);
  event.text(output.name);
  event.text(datatype_name(output.datatype));
  event.add(output.shape);
  if (output.size < INLINE_BYTES) {
    event.binary(output.data, output.size);
    return;
  }
  const char* base = output.in_arena ? output.exchange->execution->arena : nullptr;
  const auto place = static_cast<uint64_t>(output.data - base);
  event.bytes += (output.in_arena ? Writer::of(place, output.size) : Writer::of(place, output.size, 1)).bytes;
  output.data = nullptr;  // the server's from now on
}

Error* closed(const Exchange& exchange) {
  return error(INTERNAL, exchange.prefix() + "Unable to send response. Response sender has been closed.");
}

// A model that is not decoupled has one response, whose flag is not looked at.
Error* send(Exchange& exchange, Response* response, uint32_t flags, const Error* failure) {
  const bool final = (flags & RESPONSE_FINAL) != 0 || !exchange.model->decoupled;
  if (final ? exchange.finished.exchange(true) : exchange.finished.load()) return closed(exchange);
  Writer event;
  event.array(7);
  event.add(RESPONSE);
  event.add(exchange.token);
  event.add(final);
  event.add(failure == nullptr ? -1 : failure->code);
  event.add(failure == nullptr ? std::string() : failure->text);
  const bool empty = response == nullptr || failure != nullptr;
  event.map(empty ? 0 : response->parameters.size());
  if (!empty)
    for (const TRITONSERVER_Parameter& parameter : response->parameters) parameter.write(event);
  event.array(empty ? 0 : response->outputs.size());
  if (!empty)
    for (const auto& output : response->outputs) write(event, *output);
  exchange.put(event.bytes, !exchange.model->decoupled);
  return nullptr;
}
}  // namespace

API Error* TRITONBACKEND_ResponseFactoryNew(Factory** factory, TRITONBACKEND_Request* request) {
  *factory = new Factory{request->exchange};
  return nullptr;
}
API Error* TRITONBACKEND_ResponseFactoryDelete(Factory* factory) {
  delete factory;
  return nullptr;
}
API Error* TRITONBACKEND_ResponseFactorySendFlags(Factory* factory, uint32_t flags) {
  Exchange& exchange = *factory->exchange;
  if ((flags & RESPONSE_FINAL) == 0 || (!exchange.model->decoupled && exchange.finished)) return nullptr;
  return send(exchange, nullptr, flags, nullptr);
}
API Error* TRITONBACKEND_ResponseFactoryIsCancelled(Factory* factory, bool* is_cancelled) {
  *is_cancelled = factory->exchange->is_cancelled();
  return nullptr;
}

API Error* TRITONBACKEND_ResponseNew(Response** response, TRITONBACKEND_Request* request) {
  *response = new Response{request->exchange, {}, {}};
  return nullptr;
}
API Error* TRITONBACKEND_ResponseNewFromFactory(Response** response, Factory* factory) {
  *response = new Response{factory->exchange, {}, {}};
  return nullptr;
}
API Error* TRITONBACKEND_ResponseDelete(Response* response) {
  delete response;
  return nullptr;
}
API Error* TRITONBACKEND_ResponseSend(Response* response, uint32_t flags, Error* failure) {
  if (response == nullptr) return error(INVALID_ARG, "response was nullptr");
  const std::unique_ptr<Response> owned(response);
  return send(*response->exchange, response, flags, failure);
}

#define PARAMETER_SETTER(NAME, TYPE)                                                                          \
  API Error* TRITONBACKEND_ResponseSet##NAME##Parameter(Response* response, const char* name, TYPE value) { \
    if (response == nullptr) return error(INVALID_ARG, "response was nullptr");                             \
    response->parameters.push_back(TRITONSERVER_Parameter::of(name, value));                                \
    return nullptr;                                                                                         \
  }
PARAMETER_SETTER(String, const char*)
PARAMETER_SETTER(Int, int64_t)
PARAMETER_SETTER(Bool, bool)
PARAMETER_SETTER(Double, double)

API Error* TRITONBACKEND_ResponseOutput(
    Response* response, Output** output, const char* name, int datatype, const int64_t* shape, uint32_t rank) {
  if (response == nullptr) return error(INVALID_ARG, "response was nullptr");
  auto made = std::make_unique<Output>();
  made->name = name;
  made->datatype = datatype;
  made->shape.assign(shape, shape + rank);
  made->exchange = response->exchange;
  *output = made.get();
  response->outputs.push_back(std::move(made));
  return nullptr;
}
API Error* TRITONBACKEND_OutputBuffer(
    Output* self, void** buffer, uint64_t size, int* memory_type, int64_t* memory_type_id) {
  self->release();
  self->in_arena = false;
  if (size >= INLINE_BYTES) {
    self->data = self->exchange->execution->allocate(size);
    self->in_arena = self->data != nullptr;
  }
  if (self->data == nullptr) self->data = static_cast<char*>(std::malloc(size + 1));
  if (self->data == nullptr) return error(UNAVAILABLE, "unable to allocate " + std::to_string(size) + " bytes");
  self->size = self->attributes.byte_size = size;
  *buffer = self->data;
  *memory_type = MEMORY_CPU;
  *memory_type_id = 0;
  return nullptr;
}
API Error* TRITONBACKEND_OutputBufferAttributes(Output* self, TRITONSERVER_BufferAttributes** attributes) {
  *attributes = &self->attributes;
  return nullptr;
}

namespace {
Error* describe(const Output& output, const char** name, int* datatype, const int64_t** shape, uint64_t* rank) {
  if (name != nullptr) *name = output.name.c_str();
  *datatype = output.datatype;
  *shape = output.shape.data();
  *rank = output.shape.size();
  return nullptr;
}
}  // namespace

API Error* TRITONBACKEND_InferenceResponseOutputByName(
    Response* response, const char* name, int* datatype, const int64_t** shape, uint64_t* rank) {
  for (const auto& output : response->outputs)
    if (output->name == name) return describe(*output, nullptr, datatype, shape, rank);
  return error(NOT_FOUND, std::string("Output name ") + name + "not found.");
}
API Error* TRITONBACKEND_InferenceResponseOutput(
    Response* response, uint32_t index, const char** name, int* datatype, const int64_t** shape, uint64_t* rank) {
  const size_t count = response->outputs.size();
  if (index >= count) return out_of_bounds(index, count, "response has", "outputs");
  return describe(*response->outputs[index], name, datatype, shape, rank);
}

// The times of one response; the server adds up those of the first responses of all requests, of the second ones, ...
struct TRITONBACKEND_ModelInstanceResponseStatistics {
  Factory* factory = nullptr;
  uint64_t start_ns = 0, output_ns = 0, end_ns = 0;
  const Error* failure = nullptr;
};
using Times = TRITONBACKEND_ModelInstanceResponseStatistics;

API Error* TRITONBACKEND_ModelInstanceResponseStatisticsNew(Times** times) {
  *times = new Times;
  return nullptr;
}
API Error* TRITONBACKEND_ModelInstanceResponseStatisticsDelete(Times* times) {
  delete times;
  return nullptr;
}
API Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(Times*, TRITONBACKEND_ModelInstance*) {
  return nullptr;
}
#define TIMES_SETTER(NAME, TYPE, FIELD)                                                      \
  API Error* TRITONBACKEND_ModelInstanceResponseStatisticsSet##NAME(Times* times, TYPE value) { \
    times->FIELD = value;                                                                    \
    return nullptr;                                                                          \
  }
TIMES_SETTER(ResponseFactory, Factory*, factory)
TIMES_SETTER(ResponseStart, uint64_t, start_ns)
TIMES_SETTER(ComputeOutputStart, uint64_t, output_ns)
TIMES_SETTER(ResponseEnd, uint64_t, end_ns)
TIMES_SETTER(Error, Error*, failure)

API Error* TRITONBACKEND_ModelInstanceReportResponseStatistics(Times* times) {
  if (times->factory == nullptr) return error(INVALID_ARG, "response statistics have no response factory");
  Exchange& exchange = *times->factory->exchange;
  const uint64_t number = exchange.timed++;
  const bool cancelled = times->failure != nullptr && times->failure->code == CANCELLED;
  const bool has_output = times->output_ns > 0 && !cancelled;
  const uint64_t computed_ns = has_output ? times->output_ns : times->end_ns;
  if (times->start_ns > computed_ns) {
    const std::string what = has_output ? "compute output start" : "response end";
    return error(INVALID_ARG, "Response start cannot happen after " + what);
  }
  if (computed_ns > times->end_ns)
    return error(INVALID_ARG, "Compute output start cannot happen after response end");
  const char* const outcome = cancelled                   ? "cancel"
                              : times->failure != nullptr ? "fail"
                              : has_output                ? "success"
                                                          : "empty_response";
  exchange.put(
      Writer::of(TIMED, exchange.token, number, outcome, computed_ns - times->start_ns, times->end_ns - computed_ns)
          .bytes,
      !exchange.model->decoupled);
  return nullptr;
}
