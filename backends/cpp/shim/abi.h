// The part of Triton's backend API that all files share: its enumerations, and what errors, messages, tensors and
// responses are here. Numbers, names and signatures are those of Triton's public interface (backend API 1.19,
// server API 1.34); to a backend every structure is opaque.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "msgpack.h"

#define API extern "C" __attribute__((visibility("default")))

constexpr uint32_t BACKEND_API_MAJOR = 1, BACKEND_API_MINOR = 19;
constexpr uint32_t SERVER_API_MAJOR = 1, SERVER_API_MINOR = 34;

enum ErrorCode : int { UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED };
enum MemoryType : int { MEMORY_CPU, MEMORY_CPU_PINNED, MEMORY_GPU };
enum ParameterType : int { PARAMETER_STRING, PARAMETER_INT, PARAMETER_BOOL, PARAMETER_DOUBLE, PARAMETER_BYTES };
enum LogLevel : int { LOG_INFO, LOG_WARN, LOG_ERROR, LOG_VERBOSE };
enum MetricKind : int { COUNTER, GAUGE, HISTOGRAM };
constexpr uint32_t RELEASE_ALL = 1, RELEASE_RESCHEDULE = 2, RESPONSE_FINAL = 1;

struct TRITONSERVER_Error {
  int code;
  std::string text;
};
using Error = TRITONSERVER_Error;

inline Error* error(ErrorCode code, std::string text) { return new Error{code, std::move(text)}; }

// Returns the error of X, if it has one, from the calling function.
#define CHECK(X)                          \
  do {                                    \
    if (Error* failed_ = (X)) return failed_; \
  } while (false)

struct TRITONSERVER_Message {
  std::string json;
};

struct TRITONSERVER_BufferAttributes {
  int memory_type = MEMORY_CPU;
  int64_t memory_type_id = 0;
  size_t byte_size = 0;
  void* cuda_ipc_handle = nullptr;
};

struct TRITONSERVER_Parameter {
  std::string name;
  int type = PARAMETER_STRING;
  std::string text;
  int64_t number = 0;
  bool flag = false;
  double real = 0;

  const void* value() const;
  void write(Writer& out) const;  // as an entry of a map
  static TRITONSERVER_Parameter read(Reader& in);

  static TRITONSERVER_Parameter of(const char* name, const char* value) { return {name, PARAMETER_STRING, value}; }
  static TRITONSERVER_Parameter of(const char* name, int64_t value) { return {name, PARAMETER_INT, "", value}; }
  static TRITONSERVER_Parameter of(const char* name, bool value) { return {name, PARAMETER_BOOL, "", 0, value}; }
  static TRITONSERVER_Parameter of(const char* name, double value) {
    return {name, PARAMETER_DOUBLE, "", 0, false, value};
  }
};

const char* datatype_name(int datatype);   // "<invalid>" for none
int datatype_number(const std::string& name);  // 0 for none
