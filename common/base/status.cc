// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace pinfeed {

std::string_view CodeName(Code code) {
  static constexpr std::array<std::string_view, 17> kNames = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : "UNKNOWN";
}

Status::Status(Code code, std::string message, int native_error)
    : rep_(std::make_shared<const Rep>(Rep{code, std::move(message), native_error})) {
  PF_CHECK(code != Code::kOk, "a failed Status needs an error code");
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return rep_ ? rep_->message : kEmpty;
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(CodeName(rep_->code)) + ": " + rep_->message;
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  return {rep_->code, std::string(context) + ": " + rep_->message, rep_->native_error};
}

Status Status::WithoutAdvice() const {
  if (ok()) return *this;
  return {rep_->code, rep_->message.substr(0, rep_->message.find("; ")), rep_->native_error};
}

Status InvalidArgument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}
Status NotFound(std::string message) {
  return {Code::kNotFound, std::move(message)};
}
Status PermissionDenied(std::string message) {
  return {Code::kPermissionDenied, std::move(message)};
}
Status ResourceExhausted(std::string message) {
  return {Code::kResourceExhausted, std::move(message)};
}
Status FailedPrecondition(std::string message) {
  return {Code::kFailedPrecondition, std::move(message)};
}
Status Unavailable(std::string message) {
  return {Code::kUnavailable, std::move(message)};
}
Status DataLoss(std::string message) {
  return {Code::kDataLoss, std::move(message)};
}
Status Internal(std::string message) {
  return {Code::kInternal, std::move(message)};
}

namespace {

Code CodeOfErrno(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
    case ESRCH:
      return Code::kNotFound;
    case EACCES:
    case EPERM:
    case EXDEV:  // openat2(RESOLVE_BENEATH): the path leaves its root
    case ELOOP:
    case EROFS:
      return Code::kPermissionDenied;
    case ENOMEM:
    case ENOSPC:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case EDQUOT:
    case ENOBUFS:
    case ETOOMANYREFS:
      return Code::kResourceExhausted;
    case EINVAL:
    case ENAMETOOLONG:
    case EISDIR:
      return Code::kInvalidArgument;
    case EEXIST:
    case EADDRINUSE:
      return Code::kAlreadyExists;
    case EAGAIN:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
      return Code::kUnavailable;
    case ETIMEDOUT:
      return Code::kDeadlineExceeded;
    case EIO:
    case ESTALE:
      return Code::kDataLoss;
    case ENOSYS:
    case EOPNOTSUPP:
      return Code::kUnimplemented;
    default:
      return Code::kInternal;
  }
}

}  // namespace

Status ErrnoStatus(std::string_view what_on_object, int error_number) {
  std::string text = std::string(what_on_object) + ": " + std::generic_category().message(error_number) +
                     " (errno " + std::to_string(error_number) + ")";
  if (error_number == EMFILE)
    text += "; close feeds, or raise the process's limit on descriptors (LimitNOFILE= of a unit, ulimit -n)";
  if (error_number == EFBIG)
    text += "; raise the process's limit on the size of files (LimitFSIZE= of a unit, ulimit -f)";
  return {CodeOfErrno(error_number), std::move(text), error_number};
}

void CheckFailed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "pinfeed: bug at %s:%d: %s is false: %.*s\n", file, line, condition,
               static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace pinfeed
