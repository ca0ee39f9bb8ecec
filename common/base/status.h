// SPDX-License-Identifier: Apache-2.0
// The result type of every fallible function. Codes match gRPC's one to one, so that nothing is lost across
// the wire or the C ABI.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace pinfeed {

// Values equal grpc::StatusCode.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// Whether another process's number is a code of an error.
constexpr bool IsErrorCode(uint32_t number) {
  return number > 0 && number <= static_cast<uint32_t>(Code::kUnauthenticated);
}
// The error code of another process's number, which is not 0 for success; `otherwise` if it is none.
constexpr Code ErrorCodeOf(uint32_t number, Code otherwise = Code::kUnknown) {
  return IsErrorCode(number) ? static_cast<Code>(number) : otherwise;
}

// Returns gRPC's name of the code, such as "INVALID_ARGUMENT"; "UNKNOWN" for values outside the enumeration.
std::string_view CodeName(Code code);

// Purpose: success (a null pointer, no allocation) or a code, a message and a native error number.
// Threads: a value; immutable after construction, so copies may be read from any thread.
class [[nodiscard]] Status {
 public:
  Status() = default;
  // `native_error` is an errno or CUDA result, 0 if there is none. Precondition: code != kOk.
  Status(Code code, std::string message, int native_error = 0);

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  const std::string& message() const;
  int native_error() const { return rep_ ? rep_->native_error : 0; }

  // "NOT_FOUND: open /data/a.png: No such file or directory (errno 2)"; "OK" on success.
  std::string ToString() const;
  // The same failure with "context: " before its message. Success stays success.
  Status WithContext(std::string_view context) const;
  // The same failure with what its message says before "; ", behind which is what to do.
  Status WithoutAdvice() const;

 private:
  struct Rep {
    Code code;
    std::string message;
    int native_error;
  };
  std::shared_ptr<const Rep> rep_;
};

inline Status OkStatus() {
  return {};
}
Status InvalidArgument(std::string message);
Status NotFound(std::string message);
Status PermissionDenied(std::string message);
Status ResourceExhausted(std::string message);
Status FailedPrecondition(std::string message);
Status Unavailable(std::string message);
Status DataLoss(std::string message);
Status Internal(std::string message);

// Returns the error of a failed system call: "what object: strerror (errno N)". `what_on_object` names the
// operation and its object ("open /data/a.png"). The code depends on the error number (ENOENT -> kNotFound,
// EACCES -> kPermissionDenied, ENOMEM/ENOSPC/EMFILE -> kResourceExhausted, ...).
Status ErrnoStatus(std::string_view what_on_object, int error_number);

// Prints file, line and message, and aborts. Only a bug of ours may lead here, never any input.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, std::string_view message);

}  // namespace pinfeed

// Ends the process if the condition is false, which only a bug of ours can cause.
#define PF_CHECK(condition, message)                                                     \
  do {                                                                                   \
    if (!(condition)) ::pinfeed::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)

// Returns from the calling function if the expression is a Status that is not OK.
#define RETURN_IF_ERROR(expression)                                                       \
  do {                                                                                    \
    if (::pinfeed::Status pf_status_ = (expression); !pf_status_.ok()) return pf_status_; \
  } while (false)
