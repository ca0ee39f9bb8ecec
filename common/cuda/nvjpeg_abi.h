// SPDX-License-Identifier: Apache-2.0
// What this project uses of nvJPEG's binary interface, so that it builds without nvJPEG's header. Names,
// values and layouts are those of NVIDIA's documentation (docs.nvidia.com/cuda/nvjpeg, "nvJPEG Type
// Declarations" and "nvJPEG API Reference"), the same in versions 12 and 13.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace pinfeed::nvjpeg {

// nvjpegStatus_t
enum class ResultCode : int {
  kSuccess = 0,
  kNotInitialized = 1,
  kInvalidParameter = 2,
  kBadJpeg = 3,
  kJpegNotSupported = 4,
  kAllocatorFailure = 5,
  kExecutionFailed = 6,
  kArchMismatch = 7,
  kInternalError = 8,
  kImplementationNotSupported = 9,
  kIncompleteBitstream = 10,
};

// nvjpegBackend_t
enum class Backend : int {
  kHybrid = 1,    // Huffman decoding on the host, the rest on the GPU
  kHardware = 3,  // the GPU's JPEG engines
};

// nvjpegOutputFormat_t
enum class OutputFormat : int {
  kRgbInterleaved = 5,  // pixels of three bytes, in the first channel
};

// Flags of nvjpegCreateEx.
inline constexpr unsigned kNoPipeline = 1U << 0;         // NVJPEG_FLAGS_HW_DECODE_NO_PIPELINE
inline constexpr unsigned kInterpolateChroma = 1U << 5;  // NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION

// nvjpegChromaSubsampling_t
enum class Subsampling : int { kUnknown = -1, k444 = 0, k422 = 1, k420 = 2, kGray = 6 };

// nvjpegJpegEncoding_t; the values are those of the SOF markers.
enum class Encoding : int { kUnknown = 0, kBaseline = 0xC0, kExtendedSequential = 0xC1 };

// nvjpegImage_t: where the components go.
struct Image {
  unsigned char* channel[4];
  size_t pitch[4];
};

using Handle = struct OpaqueHandle*;     // nvjpegHandle_t
using State = struct OpaqueState*;       // nvjpegJpegState_t
using Bitstream = struct OpaqueStream*;  // nvjpegJpegStream_t
using Params = struct OpaqueParams*;     // nvjpegDecodeParams_t

// All functions in use: symbol, parameters. Each returns nvjpegStatus_t.
#define PF_NVJPEG_FUNCTIONS(F)                                                                          \
  F(nvjpegCreateEx, (Backend, void* device_allocator, void* pinned_allocator, unsigned flags, Handle*)) \
  F(nvjpegDestroy, (Handle))                                                                            \
  F(nvjpegJpegStateCreate, (Handle, State*))                                                            \
  F(nvjpegJpegStateDestroy, (State))                                                                    \
  F(nvjpegJpegStreamCreate, (Handle, Bitstream*))                                                       \
  F(nvjpegJpegStreamDestroy, (Bitstream))                                                               \
  F(nvjpegJpegStreamParseHeader, (Handle, const unsigned char* data, size_t bytes, Bitstream))          \
  F(nvjpegJpegStreamGetJpegEncoding, (Bitstream, Encoding*))                                            \
  F(nvjpegJpegStreamGetFrameDimensions, (Bitstream, unsigned* width, unsigned* height))                 \
  F(nvjpegJpegStreamGetComponentsNum, (Bitstream, unsigned*))                                           \
  F(nvjpegJpegStreamGetChromaSubsampling, (Bitstream, Subsampling*))                                    \
  F(nvjpegDecodeBatchedSupported, (Handle, Bitstream, int* unsupported))                                \
  F(nvjpegDecodeBatchedInitialize, (Handle, State, int images, int host_threads, OutputFormat))         \
  F(nvjpegDecodeParamsCreate, (Handle, Params*))                                                        \
  F(nvjpegDecodeParamsDestroy, (Params))                                                                \
  F(nvjpegDecodeParamsSetOutputFormat, (Params, OutputFormat))                                          \
  F(nvjpegDecodeParamsSetROI, (Params, int x, int y, int width, int height))                            \
  F(nvjpegDecodeBatchedEx, (Handle, State, const unsigned char* const* data, const size_t* bytes,       \
                            Image* outputs, Params* params, CUstream))                                  \
  F(nvjpegDecode,                                                                                       \
    (Handle, State, const unsigned char* data, size_t bytes, OutputFormat, Image* output, CUstream))

}  // namespace pinfeed::nvjpeg
