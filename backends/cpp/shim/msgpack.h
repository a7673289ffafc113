// MessagePack, as far as the messages between the server and this library need it.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

struct Bytes {
  const void* data;
  size_t size;
};

template <class T>
struct is_pair : std::false_type {};
template <class First, class Second>
struct is_pair<std::pair<First, Second>> : std::true_type {};

// Returns the bytes of the character at the start of a text; 0 if they are no UTF-8.
inline size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t index) { return index < text.size() ? static_cast<uint8_t>(text[index]) : 0; };
  const int first = byte(0), second = byte(1);
  const size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  for (size_t index = 1; index < length; ++index)
    if ((byte(index) & 0xc0) != 0x80) return 0;
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool beyond = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return overlong || beyond ? 0 : length;
}

// Appends values to a string of bytes.
class Writer {
 public:
  std::string bytes;

  // Returns an array of these values, each in the form of its type.
  template <class... T>
  static Writer of(const T&... values) {
    Writer writer;
    writer.array(sizeof...(values));
    (writer.add(values), ...);
    return writer;
  }
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      boolean(value);
    } else if constexpr (std::is_enum_v<T> || (std::is_integral_v<T> && std::is_signed_v<T>)) {
      integer(static_cast<int64_t>(value));
    } else if constexpr (std::is_integral_v<T>) {
      unsigned_integer(value);
    } else if constexpr (std::is_floating_point_v<T>) {
      real(value);
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      text(value);
    } else if constexpr (is_pair<T>::value) {
      bytes += of(value.first, value.second).bytes;
    } else if constexpr (std::is_same_v<T, Bytes>) {
      binary(value.data, value.size);
    } else {
      array(value.size());
      for (const auto& each : value) add(each);
    }
  }

  void boolean(bool value) { byte(value ? 0xc3 : 0xc2); }
  void integer(int64_t value) {
    if (value >= 0 && value < 128) {
      byte(static_cast<uint8_t>(value));
    } else {
      byte(0xd3);
      big_endian(static_cast<uint64_t>(value), 8);
    }
  }
  void unsigned_integer(uint64_t value) {
    byte(0xcf);
    big_endian(value, 8);
  }
  void real(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    byte(0xcb);
    big_endian(bits, 8);
  }
  void text(std::string_view value) {
    byte(0xdb);
    big_endian(value.size(), 4);
    while (!value.empty()) {  // with "?" for what is no text: one bad byte would make the message unreadable
      const size_t length = utf8_length(value);
      length == 0 ? byte('?') : static_cast<void>(bytes.append(value.substr(0, length)));
      value.remove_prefix(length == 0 ? 1 : length);
    }
  }
  void binary(const void* data, size_t size) {
    byte(0xc6);
    big_endian(size, 4);
    if (size > 0) bytes.append(static_cast<const char*>(data), size);
  }
  void array(size_t size) {
    if (size < 16) {
      byte(static_cast<uint8_t>(0x90 | size));
    } else {
      byte(0xdd);
      big_endian(size, 4);
    }
  }
  void map(size_t size) {
    byte(0xdf);
    big_endian(size, 4);
  }

 private:
  void byte(int value) { bytes.push_back(static_cast<char>(value)); }
  void big_endian(uint64_t value, int width) {
    for (int shift = 8 * (width - 1); shift >= 0; shift -= 8) byte(static_cast<int>(value >> shift & 0xff));
  }
};

// Reads values in their order; throws std::runtime_error where another kind of value is expected.
class Reader {
 public:
  Reader(const void* data, size_t size) : at_(static_cast<const uint8_t*>(data)), end_(at_ + size) {}

  // Reads an array of values of these types.
  template <class... T>
  void fields(T&... values) {
    array();
    (get(values), ...);
  }
  template <class T>
  void get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = boolean();
    } else if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(unsigned_integer());
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = text();
    } else if constexpr (is_pair<T>::value) {
      fields(value.first, value.second);
    } else {
      value.resize(array());
      for (auto& each : value) get(each);
    }
  }

  uint8_t peek() const {
    if (at_ == end_) throw std::runtime_error("the message ends early");
    return *at_;
  }
  bool is_text() const { return (peek() & 0xe0) == 0xa0 || (peek() >= 0xd9 && peek() <= 0xdb); }
  bool is_binary() const { return peek() >= 0xc4 && peek() <= 0xc6; }
  bool is_boolean() const { return peek() == 0xc2 || peek() == 0xc3; }
  bool is_real() const { return peek() == 0xcb; }

  bool boolean() { return next() == 0xc3; }
  int64_t integer() { return static_cast<int64_t>(unsigned_integer()); }
  uint64_t unsigned_integer() {
    const uint8_t kind = next();
    if (kind < 0x80) return kind;
    if (kind >= 0xe0) return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int8_t>(kind)));
    if (kind >= 0xcc && kind <= 0xcf) return big_endian(1 << (kind - 0xcc));
    if (kind < 0xd0 || kind > 0xd3) throw std::runtime_error("expected an integer");
    const int width = 1 << (kind - 0xd0);
    const uint64_t value = big_endian(width), sign = uint64_t{1} << (8 * width - 1);
    return (value ^ sign) - sign;
  }
  double real() {
    next();
    const uint64_t bits = big_endian(8);
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  std::string text() {
    const uint8_t kind = next();
    if ((kind & 0xe0) == 0xa0) return std::string(take(kind & 0x1f));
    if (kind < 0xd9 || kind > 0xdb) throw std::runtime_error("expected a text");
    return std::string(take(big_endian(1 << (kind - 0xd9))));
  }
  std::string_view binary() {
    const uint8_t kind = next();
    if (kind < 0xc4 || kind > 0xc6) throw std::runtime_error("expected bytes");
    return take(big_endian(1 << (kind - 0xc4)));
  }
  size_t array() { return header(0x90, 0xdc, "an array"); }
  size_t map() { return header(0x80, 0xde, "a map"); }

 private:
  const uint8_t* at_;
  const uint8_t* end_;

  uint8_t next() {
    const uint8_t value = peek();
    ++at_;
    return value;
  }
  std::string_view take(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - at_)) throw std::runtime_error("the message ends early");
    const auto* data = reinterpret_cast<const char*>(at_);
    at_ += size;
    return {data, static_cast<size_t>(size)};
  }
  uint64_t big_endian(int width) {
    uint64_t value = 0;
    for (const char each : take(static_cast<uint64_t>(width))) value = value << 8 | static_cast<uint8_t>(each);
    return value;
  }
  size_t header(int small, int large, const char* what) {
    const uint8_t kind = next();
    if ((kind & 0xf0) == small) return kind & 0x0f;
    if (kind != large && kind != large + 1) throw std::runtime_error(std::string("expected ") + what);
    return static_cast<size_t>(big_endian(kind == large ? 2 : 4));
  }
};
