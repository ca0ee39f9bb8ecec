// SPDX-License-Identifier: Apache-2.0
#include "server/image/jpeg.h"

#include <jpeglib.h>

#include <csetjmp>
#include <cstdio>  // jpeglib.h needs FILE
// After jpeglib.h:
#include <jerror.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/image/exif.h"
#include "server/image/jpeg_markers.h"

namespace pinfeed {
namespace {

// Fancy upsampling reads one neighbouring chroma sample, which is at most two pixels, on each side.
constexpr int32_t kUpsampleMargin = 2;
// By so many columns jpeg_crop_scanline may begin before those that were asked for: a block of the luma four
// times as wide as one of the chroma.
constexpr int32_t kMaxBlockWidth = 32;
// Maximum scans of a progressive file. Encoders produce about ten; decompression bombs have thousands.
constexpr int kMaxScans = 500;
// Maximum pixels of all scans together. A scan of a large image can be some hundred bytes, and takes a
// second.
constexpr uint64_t kMaxScannedPixels = uint64_t{1} << 32;

// a * b / 255, rounded: Blinn, "Three wrongs make a right", IEEE CG&A 1995.
uint8_t MulDiv255(uint32_t a, uint32_t b) {
  const uint32_t product = a * b + 128;
  return static_cast<uint8_t>((product + (product >> 8)) >> 8);
}

// Converts inverted CMYK to RGB without colour management. JPEG files hold inverted CMYK by Adobe's
// convention, which Pillow assumes for all files.
void InvertedCmykToRgb(const uint8_t* cmyk, int32_t width, uint8_t* rgb) {
  for (int32_t x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    for (int c = 0; c < 3; ++c) rgb[c] = static_cast<uint8_t>(cmyk[3] - MulDiv255(255U - cmyk[c], cmyk[3]));
  }
}

// Purpose: releases what libjpeg holds for one image.
class Abort {
 public:
  explicit Abort(jpeg_decompress_struct& cinfo) : cinfo_(cinfo) {}
  ~Abort() { jpeg_abort_decompress(&cinfo_); }
  Abort(const Abort&) = delete;
  Abort& operator=(const Abort&) = delete;

 private:
  jpeg_decompress_struct& cinfo_;
};

}  // namespace

// setjmp is called only in ReadHeader, Start, ReadRows and Finish. Between it and a library call, no object
// with a destructor may exist.
struct JpegDecoder::State {
  jpeg_decompress_struct cinfo{};
  jpeg_error_mgr error{};
  jpeg_source_mgr source{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump{};
  char message[JMSG_LENGTH_MAX] = {};
  int message_code = 0;
  ImageBuffer pixels;
  std::vector<uint8_t> cmyk;
  JpegMarkers markers;

  static State& Of(j_common_ptr cinfo) { return *static_cast<State*>(cinfo->client_data); }

  [[noreturn]] static void OnError(j_common_ptr cinfo) {
    State& state = Of(cinfo);
    state.message_code = cinfo->err->msg_code;
    cinfo->err->format_message(cinfo, state.message);
    std::longjmp(state.jump, 1);
  }
  static void OnMessage(j_common_ptr /*cinfo*/, int /*level*/) {}
  // The whole file is in memory, so a request for more data means that it is truncated.
  static boolean OnMoreInput(j_decompress_ptr cinfo) {
    cinfo->err->msg_code = JERR_INPUT_EOF;
    OnError(reinterpret_cast<j_common_ptr>(cinfo));
  }
  static void OnSkip(j_decompress_ptr cinfo, long count) {
    if (count <= 0) return;
    if (static_cast<unsigned long>(count) > cinfo->src->bytes_in_buffer) OnMoreInput(cinfo);
    cinfo->src->next_input_byte += count;
    cinfo->src->bytes_in_buffer -= static_cast<size_t>(count);
  }
  static void OnProgress(j_common_ptr cinfo) {
    const auto& decompress = *reinterpret_cast<j_decompress_ptr>(cinfo);
    const uint64_t pixels = uint64_t{decompress.image_width} * decompress.image_height;
    const auto most = static_cast<int>(std::min<uint64_t>(kMaxScans, kMaxScannedPixels / pixels));
    if (decompress.input_scan_number <= most) return;
    State& state = Of(cinfo);
    state.message_code = JERR_OUT_OF_MEMORY;
    std::snprintf(state.message, sizeof state.message, "more than %d scans of %u x %u pixels", most,
                  decompress.image_width, decompress.image_height);
    std::longjmp(state.jump, 1);
  }

  State() {
    cinfo.err = jpeg_std_error(&error);
    error.error_exit = OnError;
    error.emit_message = OnMessage;
    cinfo.client_data = this;
    source.init_source = [](j_decompress_ptr) {};
    source.fill_input_buffer = OnMoreInput;
    source.skip_input_data = OnSkip;
    source.resync_to_restart = jpeg_resync_to_restart;
    source.term_source = [](j_decompress_ptr) {};
    progress.progress_monitor = OnProgress;
  }
  ~State() { jpeg_destroy_decompress(&cinfo); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  bool ReadHeader(std::span<const std::byte> file) {
    if (setjmp(jump) != 0) return false;
    // Recreated for each file: the library keeps tables between files, and a file without its own tables
    // would be decoded with those of the previous one.
    jpeg_destroy_decompress(&cinfo);
    jpeg_create_decompress(&cinfo);
    source.next_input_byte = reinterpret_cast<const JOCTET*>(file.data());
    source.bytes_in_buffer = file.size();
    cinfo.src = &source;
    cinfo.progress = &progress;
    jpeg_read_header(&cinfo, TRUE);
    return true;
  }

  void Configure() {
    cinfo.dct_method = JDCT_ISLOW;
    cinfo.do_fancy_upsampling = TRUE;
    cinfo.out_color_space = cinfo.num_components == 4 ? JCS_CMYK : JCS_RGB;
  }
  // Preconditions: Configure was called; `columns` covers at least the region.
  bool Start(JDIMENSION* first_column, JDIMENSION* columns) {
    if (setjmp(jump) != 0) return false;
    jpeg_start_decompress(&cinfo);
    if (*columns < cinfo.output_width) jpeg_crop_scanline(&cinfo, first_column, columns);
    return true;
  }
  // Reads `rows` rows from `first_row` on into `out`.
  bool ReadRows(JDIMENSION first_row, JDIMENSION rows, uint8_t* out, size_t stride) {
    if (setjmp(jump) != 0) return false;
    const bool four = cinfo.out_color_space == JCS_CMYK;
    if (first_row > 0) jpeg_skip_scanlines(&cinfo, first_row);
    const JDIMENSION end = first_row + rows;
    while (cinfo.output_scanline < end) {
      uint8_t* lines[4];
      uint8_t* const next = out + (cinfo.output_scanline - first_row) * stride;
      const JDIMENSION count = four ? 1 : std::min<JDIMENSION>(4, end - cinfo.output_scanline);
      for (JDIMENSION i = 0; i < count; ++i) lines[i] = four ? cmyk.data() : next + i * stride;
      jpeg_read_scanlines(&cinfo, lines, count);
      if (four) InvertedCmykToRgb(cmyk.data(), static_cast<int32_t>(cinfo.output_width), next);
    }
    return true;
  }

  // Reads on to the end marker. Precondition: all rows were read.
  bool Finish() {
    if (setjmp(jump) != 0) return message_code == JERR_INPUT_EOF;  // see Open
    jpeg_finish_decompress(&cinfo);
    return true;
  }

  // What the library holds of a file with several scans. Precondition: ReadHeader succeeded.
  uint64_t CoefficientBytes() {
    if (jpeg_has_multiple_scans(&cinfo) == FALSE) return 0;
    uint64_t blocks = 0;
    for (int i = 0; i < cinfo.num_components; ++i)
      blocks += uint64_t{cinfo.comp_info[i].width_in_blocks} * cinfo.comp_info[i].height_in_blocks;
    return blocks * sizeof(JBLOCK);
  }

  Status Failure() const {
    if (message_code == JERR_INPUT_EOF) return DataLoss("JPEG file is truncated: it ends within the image");
    if (message_code == JERR_OUT_OF_MEMORY) return ResourceExhausted(std::string("JPEG: ") + message);
    const bool kind = message_code == JERR_BAD_PRECISION || message_code == JERR_SOF_UNSUPPORTED;
    return DataLoss(std::string("JPEG: ") + message +
                    (kind ? "; convert it to PNG, or to JPEG of 8 bits that is not lossless" : ""));
  }
};

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}
JpegDecoder::~JpegDecoder() = default;
ImageBuffer& JpegDecoder::pixels() {
  return state_->pixels;
}

Result<ImageHeader> JpegDecoder::Open(std::span<const std::byte> file) {
  State& s = *state_;
  const JpegMarkers& markers = s.markers = ScanJpegMarkers(file);
  if (!s.ReadHeader(file)) return s.Failure();
  // As in Pillow, a single-scan file needs no end marker if its pixels are complete.
  if (!markers.complete && jpeg_has_multiple_scans(&s.cinfo) != FALSE)
    return DataLoss("JPEG file is truncated: it has no end marker");
  RETURN_IF_ERROR(CheckDecodedSize("JPEG", s.cinfo.image_width, s.cinfo.image_height));
  const auto width = static_cast<int32_t>(s.cinfo.image_width);
  const auto height = static_cast<int32_t>(s.cinfo.image_height);
  const int components = s.cinfo.num_components;
  if (components != 1 && components != 3 && components != 4) {
    return DataLoss("JPEG has " + std::to_string(components) + " components; 1, 3 or 4 are supported");
  }
  return ImageHeader{width, height, TiffOrientation(WithoutExifId(markers.exif)).value_or(1)};
}

size_t JpegDecoder::PlainBytes() const {
  const State& s = *state_;
  const jpeg_decompress_struct& cinfo = s.cinfo;
  if (!s.markers.plain || cinfo.data_precision != 8 || cinfo.comps_in_scan != cinfo.num_components) return 0;
  const jpeg_component_info* const part = cinfo.comp_info;
  const auto sampled = [&part](int i, int h, int v) {
    return part[i].h_samp_factor == h && part[i].v_samp_factor == v;
  };
  if (cinfo.jpeg_color_space == JCS_YCbCr) {
    const bool usual = sampled(0, 1, 1) || sampled(0, 2, 1) || sampled(0, 2, 2);
    if (cinfo.num_components != 3 || !usual || !sampled(1, 1, 1) || !sampled(2, 1, 1)) return 0;
  } else if (cinfo.jpeg_color_space != JCS_GRAYSCALE || cinfo.num_components != 1 || !sampled(0, 1, 1)) {
    return 0;
  }
  // Fewer or more markers than the intervals need are damage, which decoders repair differently.
  const auto blocks = [](JDIMENSION pixels, int factor) {
    const size_t side = 8 * static_cast<size_t>(factor);
    return (size_t{pixels} + side - 1) / side;
  };
  const size_t units =
      blocks(cinfo.image_width, part->h_samp_factor) * blocks(cinfo.image_height, part->v_samp_factor);
  const size_t needed = cinfo.restart_interval == 0 ? 0 : (units - 1) / cinfo.restart_interval;
  return s.markers.restarts == needed ? s.markers.end : 0;
}

// The data of a plain file can cause only warnings, since libjpeg reads it up to the end marker. What is left
// are the tables, which libjpeg checks when it starts.
Status JpegDecoder::CheckPlain() {
  State& s = *state_;
  const Abort abort(s.cinfo);
  s.Configure();
  JDIMENSION first_column = 0;
  JDIMENSION columns = s.cinfo.image_width;
  return s.Start(&first_column, &columns) ? OkStatus() : s.Failure();
}

Result<ImageView> JpegDecoder::Decode(const Box& region) {
  State& s = *state_;
  // On every path: for a file with several scans, libjpeg holds the coefficients of the whole image.
  const Abort abort(s.cinfo);
  s.Configure();
  // A file with several scans is read completely before the first row is available. Only the rows after the
  // region are skipped then. Truncation and what stands where pixels should be must be found independently of
  // the region.
  const bool several_scans = jpeg_has_multiple_scans(&s.cinfo) != FALSE;
  const bool to_end = !several_scans && (!s.markers.complete || s.markers.stray);
  const bool whole = several_scans || to_end;
  const auto image_width = static_cast<int32_t>(s.cinfo.image_width);
  const int32_t left = whole ? 0 : std::max(0, region.x - kUpsampleMargin);
  const int32_t right =
      whole ? image_width : std::min(image_width, region.x + region.width + kUpsampleMargin);
  const int32_t top = whole ? 0 : region.y;
  auto first_column = static_cast<JDIMENSION>(left);
  auto columns = static_cast<JDIMENSION>(right - left);
  const int32_t bottom = to_end ? static_cast<int32_t>(s.cinfo.image_height) : region.y + region.height;
  const int32_t rows = bottom - top;
  const int32_t most = std::min(right - left + kMaxBlockWidth, image_width);
  ASSIGN_OR_RETURN(ImageBuffer::Memory memory, s.pixels.Ask(most, rows, s.CoefficientBytes()));
  ASSIGN_OR_RETURN(uint8_t* const out, s.pixels.Reserve(most, rows, memory));
  if (!s.Start(&first_column, &columns)) return s.Failure();
  memory.reset();  // all of it is there

  const auto width = static_cast<int32_t>(columns);
  if (s.cinfo.out_color_space == JCS_CMYK) s.cmyk.resize(4 * static_cast<size_t>(width));
  const size_t stride = 3 * static_cast<size_t>(width);
  if (!s.ReadRows(static_cast<JDIMENSION>(top), static_cast<JDIMENSION>(rows), out, stride) ||
      (to_end && !s.Finish())) {
    return s.Failure();
  }
  const ImageView decoded{out, width, rows, stride};
  return decoded.Crop(
      {region.x - static_cast<int32_t>(first_column), region.y - top, region.width, region.height});
}

}  // namespace pinfeed
