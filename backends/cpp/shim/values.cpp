// TRITONSERVER_*: errors, data types, messages, parameters, attributes of buffers, log lines, activities of traces.
#include <algorithm>
#include <ctime>
#include <iterator>

#include "core.h"

namespace {
constexpr const char* ERRORS[] = {"Unknown",     "Internal",    "Not found",      "Invalid argument",
                                  "Unavailable", "Unsupported", "Already exists", "Cancelled"};
struct DataType {
  const char* name;
  uint32_t size;
};
constexpr DataType DATATYPES[] = {{"<invalid>", 0}, {"BOOL", 1},  {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4},
                                  {"UINT64", 8},    {"INT8", 1},  {"INT16", 2}, {"INT32", 4},  {"INT64", 8},
                                  {"FP16", 2},      {"FP32", 4},  {"FP64", 8},  {"BYTES", 0},  {"BF16", 2}};
constexpr const char* MEMORY_TYPES[] = {"CPU", "CPU_PINNED", "GPU"};
constexpr const char* PARAMETER_TYPES[] = {"STRING", "INT", "BOOL", "DOUBLE", "BYTES"};
constexpr const char* INSTANCE_KINDS[] = {"AUTO", "CPU", "GPU", "MODEL"};
std::atomic<int> log_levels{0};  // a bit for each level

template <size_t N>
const char* name_of(const char* const (&names)[N], int number) {
  return number >= 0 && static_cast<size_t>(number) < N ? names[number] : "<invalid>";
}
}  // namespace

const char* datatype_name(int datatype) {
  const bool known = datatype >= 0 && static_cast<size_t>(datatype) < std::size(DATATYPES);
  return DATATYPES[known ? datatype : 0].name;
}

int datatype_number(const std::string& name) {
  for (size_t number = 1; number < std::size(DATATYPES); ++number)
    if (name == DATATYPES[number].name) return static_cast<int>(number);
  return 0;
}

const void* TRITONSERVER_Parameter::value() const {
  switch (type) {
    case PARAMETER_INT: return &number;
    case PARAMETER_BOOL: return &flag;
    case PARAMETER_DOUBLE: return &real;
    default: return text.c_str();
  }
}

void TRITONSERVER_Parameter::write(Writer& out) const {
  out.text(name);
  switch (type) {
    case PARAMETER_INT: return out.integer(number);
    case PARAMETER_BOOL: return out.boolean(flag);
    case PARAMETER_DOUBLE: return out.real(real);
    default: return out.text(text);
  }
}

TRITONSERVER_Parameter TRITONSERVER_Parameter::read(Reader& in) {
  const std::string name = in.text();
  if (in.is_text()) return of(name.c_str(), in.text().c_str());
  if (in.is_boolean()) return of(name.c_str(), in.boolean());
  if (in.is_real()) return of(name.c_str(), in.real());
  return of(name.c_str(), in.integer());
}

API Error* TRITONSERVER_ApiVersion(uint32_t* major, uint32_t* minor) {
  *major = SERVER_API_MAJOR;
  *minor = SERVER_API_MINOR;
  return nullptr;
}

API Error* TRITONSERVER_ErrorNew(int code, const char* text) { return new Error{code, text}; }
API void TRITONSERVER_ErrorDelete(Error* error) { delete error; }
API int TRITONSERVER_ErrorCode(Error* error) { return error->code; }
API const char* TRITONSERVER_ErrorCodeString(Error* error) { return name_of(ERRORS, error->code); }
API const char* TRITONSERVER_ErrorMessage(Error* error) { return error->text.c_str(); }

API const char* TRITONSERVER_DataTypeString(int datatype) { return datatype_name(datatype); }
API int TRITONSERVER_StringToDataType(const char* name) { return datatype_number(name); }
API uint32_t TRITONSERVER_DataTypeByteSize(int datatype) {
  return datatype >= 0 && static_cast<size_t>(datatype) < std::size(DATATYPES) ? DATATYPES[datatype].size : 0;
}
API const char* TRITONSERVER_MemoryTypeString(int type) { return name_of(MEMORY_TYPES, type); }
API const char* TRITONSERVER_ParameterTypeString(int type) { return name_of(PARAMETER_TYPES, type); }
API const char* TRITONSERVER_InstanceGroupKindString(int kind) { return name_of(INSTANCE_KINDS, kind); }

API TRITONSERVER_Parameter* TRITONSERVER_ParameterNew(const char* name, int type, const void* value) {
  using Parameter = TRITONSERVER_Parameter;
  switch (type) {
    case PARAMETER_STRING: return new Parameter(Parameter::of(name, static_cast<const char*>(value)));
    case PARAMETER_INT: return new Parameter(Parameter::of(name, *static_cast<const int64_t*>(value)));
    case PARAMETER_BOOL: return new Parameter(Parameter::of(name, *static_cast<const bool*>(value)));
    case PARAMETER_DOUBLE: return new Parameter(Parameter::of(name, *static_cast<const double*>(value)));
    default: return nullptr;
  }
}
API TRITONSERVER_Parameter* TRITONSERVER_ParameterBytesNew(const char* name, const void* data, uint64_t size) {
  return new TRITONSERVER_Parameter{name, PARAMETER_BYTES, std::string(static_cast<const char*>(data), size)};
}
API void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter* parameter) { delete parameter; }

API Error* TRITONSERVER_MessageNewFromSerializedJson(TRITONSERVER_Message** message, const char* text, size_t size) {
  *message = new TRITONSERVER_Message{std::string(text, size)};
  return nullptr;
}
API Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message) {
  delete message;
  return nullptr;
}
API Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** text, size_t* size) {
  *text = message->json.c_str();
  *size = message->json.size();
  return nullptr;
}

API Error* TRITONSERVER_BufferAttributesNew(TRITONSERVER_BufferAttributes** attributes) {
  *attributes = new TRITONSERVER_BufferAttributes;
  return nullptr;
}
API Error* TRITONSERVER_BufferAttributesDelete(TRITONSERVER_BufferAttributes* attributes) {
  delete attributes;
  return nullptr;
}
#define ATTRIBUTE(NAME, TYPE, FIELD)                                                                         \
  API Error* TRITONSERVER_BufferAttributesSet##NAME(TRITONSERVER_BufferAttributes* attributes, TYPE value) { \
    attributes->FIELD = value;                                                                               \
    return nullptr;                                                                                          \
  }                                                                                                          \
  API Error* TRITONSERVER_BufferAttributes##NAME(TRITONSERVER_BufferAttributes* attributes, TYPE* value) {   \
    *value = attributes->FIELD;                                                                              \
    return nullptr;                                                                                          \
  }
ATTRIBUTE(MemoryType, int, memory_type)
ATTRIBUTE(MemoryTypeId, int64_t, memory_type_id)
ATTRIBUTE(ByteSize, size_t, byte_size)
ATTRIBUTE(CudaIpcHandle, void*, cuda_ipc_handle)

API void nereid_set_log_levels(int levels) { log_levels = levels; }
API bool TRITONSERVER_LogIsEnabled(int level) { return level >= 0 && level < 4 && log_levels >> level & 1; }
API Error* TRITONSERVER_LogMessage(int level, const char* file, int line, const char* text) {
  if (TRITONSERVER_LogIsEnabled(level)) Queue::global().log(level, file, line, text);
  return nullptr;
}

API Error* TRITONSERVER_InferenceTraceReportActivity(
    TRITONSERVER_InferenceTrace* trace, uint64_t time_ns, const char* name) {
  if (trace == nullptr) return nullptr;
  trace->exchange->put(Writer::of(ACTIVITY, trace->exchange->token, time_ns, name).bytes, true);
  return nullptr;
}
API Error* TRITONSERVER_InferenceTraceSpawnChildTrace(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTrace** child) {
  *child = trace == nullptr ? nullptr
                            : new TRITONSERVER_InferenceTrace{trace->exchange, trace->exchange->shared_from_this()};
  return nullptr;
}
API Error* TRITONSERVER_InferenceTraceDelete(TRITONSERVER_InferenceTrace* trace) {
  if (trace != nullptr && trace->owner != nullptr) delete trace;
  return nullptr;
}
