// SPDX-License-Identifier: Apache-2.0
// A libnvjpeg.so for machines without a GPU ($PINFEED_NVJPEG): what common/cuda/nvjpeg_abi.h lists, with
// libjpeg in place of the engines. "Device memory" is host memory (stand_in.h). Like the engines it ignores
// its stream. An image that libjpeg rejects is skipped, and success is reported all the same. A part of an
// image has wrong pixels in the image's last column and row. With $PINFEED_STAND_IN_WHOLE_IMAGES it refuses
// to write parts of images, and to decode without the engines. $PINFEED_STAND_IN_DECODERS is a folder where
// each process that decodes leaves an empty file named by its id.
#include <fcntl.h>
#include <unistd.h>

#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common/cuda/nvjpeg_abi.h"

// After <cstdio>, whose FILE it needs:
#include <jpeglib.h>

namespace pinfeed::nvjpeg {

struct OpaqueHandle {};
struct OpaqueState {
  int images = 0;
};
struct OpaqueStream {
  unsigned width = 0;
  unsigned height = 0;
  unsigned components = 0;
  Encoding encoding = Encoding::kUnknown;
  Subsampling subsampling = Subsampling::kUnknown;
};

struct OpaqueParams {
  int x = 0;
  int y = 0;
  int width = -1;  // the whole image
  int height = -1;
};

namespace {

// Purpose: one file in libjpeg. No object with a destructor lives between setjmp and the library.
struct Jpeg {
  jpeg_decompress_struct cinfo{};
  jpeg_error_mgr error{};
  std::jmp_buf jump{};

  Jpeg() {
    cinfo.err = jpeg_std_error(&error);
    cinfo.client_data = this;
    error.error_exit = [](j_common_ptr common) {
      std::longjmp(static_cast<Jpeg*>(common->client_data)->jump, 1);
    };
    error.emit_message = [](j_common_ptr, int) {};
    jpeg_create_decompress(&cinfo);
  }
  ~Jpeg() { jpeg_destroy_decompress(&cinfo); }
  Jpeg(const Jpeg&) = delete;
  Jpeg& operator=(const Jpeg&) = delete;

  bool ReadHeader(const unsigned char* data, size_t bytes) {
    if (setjmp(jump) != 0) return false;
    jpeg_mem_src(&cinfo, data, bytes);
    return jpeg_read_header(&cinfo, TRUE) == JPEG_HEADER_OK;
  }

  // The last column and row of a part: see the file's comment.
  void DamageEdge(std::vector<unsigned char>& row) const {
    const bool last = cinfo.output_scanline == cinfo.output_height;
    for (size_t i = last ? 0 : row.size() - 3; i < row.size(); ++i) row[i] ^= 0xff;
  }

  // Writes a part's pixels of three bytes. `row`: room for a row of the image.
  bool ReadRgb(const Image& output, const OpaqueParams& part, std::vector<unsigned char>& row) {
    if (setjmp(jump) != 0) return false;
    cinfo.out_color_space = JCS_RGB;
    jpeg_start_decompress(&cinfo);
    const int width = part.width < 0 ? static_cast<int>(cinfo.output_width) : part.width;
    const int height = part.height < 0 ? static_cast<int>(cinfo.output_height) : part.height;
    if (part.x + width > static_cast<int>(cinfo.output_width) ||
        part.y + height > static_cast<int>(cinfo.output_height))
      return false;
    row.resize(size_t{3} * cinfo.output_width);
    const bool whole =
        width == static_cast<int>(cinfo.output_width) && height == static_cast<int>(cinfo.output_height);
    while (cinfo.output_scanline < cinfo.output_height) {
      const int y = static_cast<int>(cinfo.output_scanline) - part.y;
      JSAMPROW line = row.data();
      jpeg_read_scanlines(&cinfo, &line, 1);
      if (!whole) DamageEdge(row);
      if (y >= 0 && y < height)
        std::memcpy(output.channel[0] + static_cast<size_t>(y) * output.pitch[0], &row[3 * part.x],
                    3 * width);
    }
    jpeg_finish_decompress(&cinfo);
    return true;
  }
};

bool Decode(const unsigned char* data, size_t bytes, const Image& output, const OpaqueParams& part) {
  std::vector<unsigned char> row;
  Jpeg jpeg;
  if (!jpeg.ReadHeader(data, bytes)) return false;
  return jpeg.ReadRgb(output, part, row);
}

bool WritesWholeImagesOnly() {
  static const bool asked = std::getenv("PINFEED_STAND_IN_WHOLE_IMAGES") != nullptr;
  return asked;
}

bool LeaveMark() {
  const char* const folder = std::getenv("PINFEED_STAND_IN_DECODERS");
  if (folder == nullptr) return false;
  const std::string path = std::string(folder) + "/" + std::to_string(::getpid());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

Subsampling SubsamplingOf(const jpeg_decompress_struct& cinfo) {
  if (cinfo.num_components == 1) return Subsampling::kGray;
  const jpeg_component_info& luma = cinfo.comp_info[0];
  if (luma.h_samp_factor == 1 && luma.v_samp_factor == 1) return Subsampling::k444;
  if (luma.h_samp_factor == 2 && luma.v_samp_factor == 1) return Subsampling::k422;
  if (luma.h_samp_factor == 2 && luma.v_samp_factor == 2) return Subsampling::k420;
  return Subsampling::kUnknown;
}

template <typename T>
ResultCode Make(T** out) {
  *out = new T;
  return ResultCode::kSuccess;
}
template <typename T>
ResultCode Destroy(T* object) {
  delete object;
  return ResultCode::kSuccess;
}

}  // namespace
}  // namespace pinfeed::nvjpeg

using namespace pinfeed::nvjpeg;  // NOLINT(google-build-using-namespace): the names of a C library follow

#define PF_STAND_IN_NVJPEG(name, parameters) \
  extern "C" __attribute__((visibility("default"))) ResultCode name parameters;
PF_NVJPEG_FUNCTIONS(PF_STAND_IN_NVJPEG)
#undef PF_STAND_IN_NVJPEG

ResultCode nvjpegCreateEx(Backend /*backend*/, void* /*device*/, void* /*pinned*/, unsigned /*flags*/,
                          Handle* handle) {
  return Make(handle);
}
ResultCode nvjpegDestroy(Handle handle) {
  return Destroy(handle);
}
ResultCode nvjpegJpegStateCreate(Handle /*handle*/, State* state) {
  return Make(state);
}
ResultCode nvjpegJpegStateDestroy(State state) {
  return Destroy(state);
}
ResultCode nvjpegJpegStreamCreate(Handle /*handle*/, Bitstream* stream) {
  return Make(stream);
}
ResultCode nvjpegJpegStreamDestroy(Bitstream stream) {
  return Destroy(stream);
}

ResultCode nvjpegJpegStreamParseHeader(Handle /*handle*/, const unsigned char* data, size_t bytes,
                                       Bitstream stream) {
  Jpeg jpeg;
  if (!jpeg.ReadHeader(data, bytes)) return ResultCode::kBadJpeg;
  *stream = {jpeg.cinfo.image_width, jpeg.cinfo.image_height,
             static_cast<unsigned>(jpeg.cinfo.num_components),
             jpeg.cinfo.progressive_mode != FALSE ? Encoding::kUnknown : Encoding::kBaseline,
             SubsamplingOf(jpeg.cinfo)};
  return ResultCode::kSuccess;
}
ResultCode nvjpegJpegStreamGetJpegEncoding(Bitstream stream, Encoding* encoding) {
  *encoding = stream->encoding;
  return ResultCode::kSuccess;
}
ResultCode nvjpegJpegStreamGetFrameDimensions(Bitstream stream, unsigned* width, unsigned* height) {
  *width = stream->width;
  *height = stream->height;
  return ResultCode::kSuccess;
}
ResultCode nvjpegJpegStreamGetComponentsNum(Bitstream stream, unsigned* components) {
  *components = stream->components;
  return ResultCode::kSuccess;
}
ResultCode nvjpegJpegStreamGetChromaSubsampling(Bitstream stream, Subsampling* subsampling) {
  *subsampling = stream->subsampling;
  return ResultCode::kSuccess;
}

ResultCode nvjpegDecodeBatchedSupported(Handle /*handle*/, Bitstream stream, int* unsupported) {
  *unsupported = stream->encoding == Encoding::kBaseline ? 0 : 1;
  return ResultCode::kSuccess;
}
ResultCode nvjpegDecodeBatchedInitialize(Handle /*handle*/, State state, int images, int /*threads*/,
                                         OutputFormat format) {
  if (format != OutputFormat::kRgbInterleaved) return ResultCode::kInvalidParameter;
  *state = {images};
  return ResultCode::kSuccess;
}
ResultCode nvjpegDecodeParamsCreate(Handle /*handle*/, Params* params) {
  return Make(params);
}
ResultCode nvjpegDecodeParamsDestroy(Params params) {
  return Destroy(params);
}
ResultCode nvjpegDecodeParamsSetOutputFormat(Params /*params*/, OutputFormat format) {
  return format == OutputFormat::kRgbInterleaved ? ResultCode::kSuccess : ResultCode::kInvalidParameter;
}
ResultCode nvjpegDecodeParamsSetROI(Params params, int x, int y, int width, int height) {
  *params = {x, y, width, height};
  return ResultCode::kSuccess;
}
ResultCode nvjpegDecodeBatchedEx(Handle /*handle*/, State state, const unsigned char* const* data,
                                 const size_t* bytes, Image* outputs, Params* params, CUstream /*stream*/) {
  static const bool marked = LeaveMark();
  (void)marked;
  if (WritesWholeImagesOnly() && params[0]->width >= 0) return ResultCode::kImplementationNotSupported;
  for (int i = 0; i < state->images; ++i) (void)Decode(data[i], bytes[i], outputs[i], *params[i]);
  return ResultCode::kSuccess;
}
ResultCode nvjpegDecode(Handle /*handle*/, State /*state*/, const unsigned char* data, size_t bytes,
                        OutputFormat format, Image* output, CUstream /*stream*/) {
  if (format != OutputFormat::kRgbInterleaved) return ResultCode::kInvalidParameter;
  if (WritesWholeImagesOnly()) return ResultCode::kImplementationNotSupported;
  return Decode(data, bytes, *output, {}) ? ResultCode::kSuccess : ResultCode::kBadJpeg;
}
