// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/nvjpeg.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <iterator>
#include <string_view>
#include <vector>

namespace pinfeed::nvjpeg {
namespace {

constexpr const char* kNames[] = {"libnvjpeg.so.13", "libnvjpeg.so.12"};
constexpr char kHowToGetOne[] =
    "install the CUDA Toolkit or the Python package nvidia-nvjpeg (nvidia-nvjpeg-cu12 for CUDA 12), or name "
    "the file in PINFEED_NVJPEG";

std::string Folder(std::string_view path) {
  const size_t slash = path.rfind('/');
  return std::string(path.substr(0, slash == std::string_view::npos ? 0 : slash));
}

// Where the packages of PyPI put nvJPEG, given the folder of another library: CUDA 13's are in one folder
// (nvidia/cu13/lib), each of CUDA 12's in its own (nvidia/cuda_runtime/lib, nvidia/nvjpeg/lib).
int AddPackageFolders(dl_phdr_info* info, size_t /*bytes*/, void* folders) {
  auto& found = *static_cast<std::vector<std::string>*>(folders);
  const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
  if (path.find("/libcudart.so") == std::string_view::npos) return 0;
  found.push_back(Folder(path));
  found.push_back(Folder(path) + "/../../nvjpeg/lib");
  return 0;
}

std::vector<std::string> Folders() {
  std::vector<std::string> folders;
  ::dl_iterate_phdr(AddPackageFolders, &folders);
  // libpinfeed.so in the package: site-packages/pinfeed/lib or site-packages/pinfeed.
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&Folder), &self) != 0 && self.dli_fname != nullptr) {
    for (const char* const up : {"/..", "/../.."}) {
      folders.push_back(Folder(self.dli_fname) + up + "/nvidia/cu13/lib");
      folders.push_back(Folder(self.dli_fname) + up + "/nvidia/nvjpeg/lib");
    }
  }
  if (const char* const home = std::getenv("CUDA_HOME"); home != nullptr && *home != '\0')
    folders.push_back(std::string(home) + "/lib64");
  folders.emplace_back("/usr/local/cuda/lib64");
  return folders;
}

// Never closed, like the driver's library.
void* Open(const std::string& file) {
  return ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
}

Result<void*> OpenLibrary() {
  if (const char* const file = std::getenv("PINFEED_NVJPEG"); file != nullptr && *file != '\0') {
    if (void* const library = Open(file); library != nullptr) return library;
    const char* const reason = ::dlerror();
    return Unavailable("no nvJPEG: PINFEED_NVJPEG=" + std::string(file) + ": " +
                       (reason != nullptr ? reason : "it cannot be loaded"));
  }
  for (const char* const name : kNames) {
    if (void* const library = Open(name); library != nullptr) return library;
  }
  for (const std::string& folder : Folders()) {
    for (const char* const name : kNames) {
      if (void* const library = Open(folder + "/" + name); library != nullptr) return library;
    }
  }
  return Unavailable("no nvJPEG: neither libnvjpeg.so.13 nor libnvjpeg.so.12 was found; " +
                     std::string(kHowToGetOne));
}

Result<const Functions*> LoadOnce() {
  ASSIGN_OR_RETURN(void* const library, OpenLibrary());
  static Functions functions;
#define PF_NVJPEG_RESOLVE(name, parameters)                                             \
  functions.name = reinterpret_cast<decltype(functions.name)>(::dlsym(library, #name)); \
  if (functions.name == nullptr)                                                        \
    return Unavailable("nvJPEG has no function " #name ": it is too old; " + std::string(kHowToGetOne));
  PF_NVJPEG_FUNCTIONS(PF_NVJPEG_RESOLVE)
#undef PF_NVJPEG_RESOLVE
  return &functions;
}

std::string Name(ResultCode result) {
  static constexpr const char* kResults[] = {"SUCCESS",
                                             "NOT_INITIALIZED",
                                             "INVALID_PARAMETER",
                                             "BAD_JPEG",
                                             "JPEG_NOT_SUPPORTED",
                                             "ALLOCATOR_FAILURE",
                                             "EXECUTION_FAILED",
                                             "ARCH_MISMATCH",
                                             "INTERNAL_ERROR",
                                             "IMPLEMENTATION_NOT_SUPPORTED",
                                             "INCOMPLETE_BITSTREAM"};
  const auto code = static_cast<size_t>(result);
  return code < std::size(kResults) ? kResults[code] : "error " + std::to_string(static_cast<int>(result));
}

}  // namespace

Result<const Functions*> Functions::Load() {
  static const Result<const Functions*> result = LoadOnce();
  return result;
}

Result<Decoder> Decoder::Create(const Functions& api, Backend backend) {
  const std::string what =
      backend == Backend::kHardware ? "use the GPU's JPEG engines" : "use nvJPEG's decoder without engines";
  Decoder decoder;
  Handle handle = nullptr;
  // Without the pipeline, a call takes less time on a busy GPU, and not more on an idle one.
  constexpr unsigned kFlags = kNoPipeline | kInterpolateChroma;
  RETURN_IF_ERROR(ToStatus(api.nvjpegCreateEx(backend, nullptr, nullptr, kFlags, &handle), what));
  decoder.handle_.reset({&api, handle});
  State state = nullptr;
  RETURN_IF_ERROR(ToStatus(api.nvjpegJpegStateCreate(handle, &state), what));
  decoder.state_.reset({&api, state});
  Bitstream bitstream = nullptr;
  RETURN_IF_ERROR(ToStatus(api.nvjpegJpegStreamCreate(handle, &bitstream), what));
  decoder.bitstream_.reset({&api, bitstream});
  return decoder;
}

Status ToStatus(ResultCode result, const std::string& what) {
  if (result == ResultCode::kSuccess) return OkStatus();
  const std::string message = what + ": nvJPEG says " + Name(result);
  switch (result) {
    case ResultCode::kBadJpeg:
    case ResultCode::kJpegNotSupported:
    case ResultCode::kIncompleteBitstream:
      return {Code::kDataLoss, message, static_cast<int>(result)};
    case ResultCode::kArchMismatch:
    case ResultCode::kImplementationNotSupported:
      return {Code::kUnavailable, message, static_cast<int>(result)};
    case ResultCode::kAllocatorFailure:
      return {Code::kResourceExhausted, message, static_cast<int>(result)};
    default:
      return {Code::kInternal, message, static_cast<int>(result)};
  }
}

}  // namespace pinfeed::nvjpeg
