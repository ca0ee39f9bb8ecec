// SPDX-License-Identifier: Apache-2.0
// nvJPEG, loaded at run time like the driver, so that programs also start on machines without it. Owners for
// its objects.
#pragma once

#include <string>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/cuda/nvjpeg_abi.h"

namespace pinfeed {
namespace nvjpeg {

// Purpose: nvJPEG's functions. Constant for the whole process. Threads: any.
struct Functions {
#define PF_NVJPEG_MEMBER(name, parameters) ResultCode(*name) parameters = nullptr;
  PF_NVJPEG_FUNCTIONS(PF_NVJPEG_MEMBER)
#undef PF_NVJPEG_MEMBER

  // Loads the library once per process. All calls return the result of the first. It is the file that
  // $PINFEED_NVJPEG names. Without that variable it is libnvjpeg.so.13 or .12: one that the process has
  // loaded already or the system finds, one of the Python package nvidia-nvjpeg beside CUDA's runtime or
  // beside libpinfeed.so, or one of the CUDA Toolkit in $CUDA_HOME or /usr/local/cuda. kUnavailable says that
  // there is none, and how to get one. The library stays loaded.
  static Result<const Functions*> Load();
};

template <typename Native>
struct Object {
  const Functions* api = nullptr;
  Native native = nullptr;
  bool operator==(const Object&) const = default;
};

// What kClose returns is ignored: it fails only for an invalid handle. The GPU's context must be current.
template <typename Native, ResultCode (*Functions::*kClose)(Native)>
struct ObjectTraits {
  using Handle = Object<Native>;
  static constexpr Handle Null() { return {}; }
  static void Close(Handle object) noexcept { (void)(object.api->*kClose)(object.native); }
};

using UniqueParams = UniqueHandle<ObjectTraits<Params, &Functions::nvjpegDecodeParamsDestroy>>;

// Purpose: decodes with one backend: its handle, the state of one decoder, and the parsed header of one file.
// Owns them. Borrows the functions. Threads: one at a time. Precondition of all, destruction included: the
// GPU's context is current.
class Decoder {
 public:
  // kUnavailable if the GPU has no such backend.
  static Result<Decoder> Create(const Functions& api, Backend backend);
  // No assignment: it would destroy the handle before what was made with it.
  Decoder(Decoder&&) = default;
  Decoder& operator=(Decoder&&) = delete;
  ~Decoder() = default;

  Handle handle() const { return handle_.get().native; }
  State state() const { return state_.get().native; }
  Bitstream bitstream() const { return bitstream_.get().native; }

 private:
  Decoder() = default;

  // The handle is destroyed last.
  UniqueHandle<ObjectTraits<Handle, &Functions::nvjpegDestroy>> handle_;
  UniqueHandle<ObjectTraits<State, &Functions::nvjpegJpegStateDestroy>> state_;
  UniqueHandle<ObjectTraits<Bitstream, &Functions::nvjpegJpegStreamDestroy>> bitstream_;
};

// Returns OK or an error "<what>: nvJPEG says BAD_JPEG". kDataLoss for what is wrong with a file,
// kUnavailable for what the GPU lacks, kResourceExhausted for memory, otherwise kInternal.
Status ToStatus(ResultCode result, const std::string& what);

}  // namespace nvjpeg

using NvJpeg = nvjpeg::Functions;

}  // namespace pinfeed
