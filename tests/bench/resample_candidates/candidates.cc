// SPDX-License-Identifier: Apache-2.0
// In: a candidate's number and a Job. Out: the resized image, or the median time of it on one thread, set-up
// of the call included (random crops differ in size, so a loader cannot keep a library's context).
#include <Imlib2.h>
#include <libyuv.h>
#include <magick/api.h>
#include <turbojpeg.h>
#include <vips/vips.h>
#include <zimg.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <opencv2/imgproc.hpp>
#include <vector>

#include "own.h"
extern "C" {
#include <libswscale/swscale.h>
}

namespace {
struct Buffer : std::vector<uint8_t> {  // 64-byte aligned view into a vector
  explicit Buffer(size_t n) : std::vector<uint8_t>(n + 64) {}
  uint8_t* at64() { return data() + (64 - reinterpret_cast<uintptr_t>(data()) % 64) % 64; }
};
size_t Pitch(int bytes) {
  return (static_cast<size_t>(bytes) + 127) / 64 * 64;
}
const uint8_t* Corner(const Job& j) {
  return j.src + 3 * (static_cast<size_t>(j.y) * j.src_w + j.x);
}

bool OwnSimd(const Job& j) {
  return ResizeOwn(j, true), true;
}
bool OwnScalar(const Job& j) {
  return ResizeOwn(j, false), true;
}

bool Zimg(const Job& j) {  // planar out; the crop is zimg's active region
  const size_t sp = Pitch(j.src_w), dp = Pitch(j.dst_w);
  Buffer in(3 * sp * j.src_h), out(3 * dp * j.dst_h);
  libyuv::SplitRGBPlane(j.src, 3 * j.src_w, in.at64(), sp, in.at64() + sp * j.src_h, sp,
                        in.at64() + 2 * sp * j.src_h, sp, j.src_w, j.src_h);
  zimg_image_format sf, df;
  zimg_image_format_default(&sf, ZIMG_API_VERSION);
  sf.pixel_type = ZIMG_PIXEL_BYTE, sf.color_family = ZIMG_COLOR_RGB, sf.pixel_range = ZIMG_RANGE_FULL,
  sf.matrix_coefficients = ZIMG_MATRIX_RGB;
  df = sf;
  sf.width = j.src_w, sf.height = j.src_h, df.width = j.dst_w, df.height = j.dst_h;
  sf.active_region = {double(j.x), double(j.y), double(j.w), double(j.h)};
  zimg_graph_builder_params params;
  zimg_graph_builder_params_default(&params, ZIMG_API_VERSION);
  params.resample_filter = ZIMG_RESIZE_BILINEAR, params.dither_type = ZIMG_DITHER_NONE,
  params.cpu_type = ZIMG_CPU_AUTO_64B;
  zimg_filter_graph* graph = zimg_filter_graph_build(&sf, &df, &params);
  size_t tmp = 0;
  if (!graph || zimg_filter_graph_get_tmp_size(graph, &tmp)) return false;
  Buffer scratch(tmp);
  zimg_image_buffer_const src{ZIMG_API_VERSION, {}};
  zimg_image_buffer dst{ZIMG_API_VERSION, {}};
  for (int p = 0; p < 3; ++p) {
    src.plane[p] = {in.at64() + p * sp * j.src_h, static_cast<ptrdiff_t>(sp), ZIMG_BUFFER_MAX};
    dst.plane[p] = {out.at64() + p * dp * j.dst_h, static_cast<ptrdiff_t>(dp), ZIMG_BUFFER_MAX};
  }
  const bool ok =
      !zimg_filter_graph_process(graph, &src, &dst, scratch.at64(), nullptr, nullptr, nullptr, nullptr);
  zimg_filter_graph_free(graph);
  for (int y = 0; y < 3 * j.dst_h; ++y)
    std::memcpy(j.dst + static_cast<size_t>(y) * j.dst_w, out.at64() + y * dp, j.dst_w);
  return ok;
}

template <AVPixelFormat format>
bool Sws(const Job& j) {
  SwsContext* c =
      sws_getContext(j.w, j.h, format, j.dst_w, j.dst_h, format,
                     SWS_BILINEAR | SWS_ACCURATE_RND | SWS_BITEXACT | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP,
                     nullptr, nullptr, nullptr);
  if (!c) return false;
  bool ok;
  if (format == AV_PIX_FMT_RGB24) {
    const size_t dp = Pitch(3 * j.dst_w);
    Buffer out(dp * j.dst_h);
    const uint8_t* src[4] = {Corner(j)};
    uint8_t* dst[4] = {out.at64()};
    const int ss[4] = {3 * j.src_w}, ds[4] = {static_cast<int>(dp)};
    ok = sws_scale(c, src, ss, 0, j.h, dst, ds) == j.dst_h;
    for (int y = 0; y < j.dst_h; ++y)
      std::memcpy(j.dst + static_cast<size_t>(y) * 3 * j.dst_w, out.at64() + y * dp, 3 * j.dst_w);
  } else {  // R, G, B as the three planes of YUV 4:4:4: scaled alike, not converted
    const size_t sp = Pitch(j.w), dp = Pitch(j.dst_w);
    Buffer in(3 * sp * j.h), out(3 * dp * j.dst_h);
    uint8_t* s = in.at64();
    libyuv::SplitRGBPlane(Corner(j), 3 * j.src_w, s, sp, s + sp * j.h, sp, s + 2 * sp * j.h, sp, j.w, j.h);
    const uint8_t* src[4] = {s, s + sp * j.h, s + 2 * sp * j.h};
    uint8_t* dst[4] = {out.at64(), out.at64() + dp * j.dst_h, out.at64() + 2 * dp * j.dst_h};
    const int p = static_cast<int>(sp), q = static_cast<int>(dp), ss[4] = {p, p, p}, ds[4] = {q, q, q};
    ok = sws_scale(c, src, ss, 0, j.h, dst, ds) == j.dst_h;
    for (int y = 0; y < 3 * j.dst_h; ++y)
      std::memcpy(j.dst + static_cast<size_t>(y) * j.dst_w, out.at64() + y * dp, j.dst_w);
  }
  sws_freeContext(c);
  return ok;
}

template <int mode>
bool Cv(const Job& j) {
  cv::setNumThreads(1);
  const cv::Mat src(j.h, j.w, CV_8UC3, const_cast<uint8_t*>(Corner(j)), 3 * static_cast<size_t>(j.src_w));
  cv::Mat dst(j.dst_h, j.dst_w, CV_8UC3, j.dst);
  cv::resize(src, dst, dst.size(), 0, 0, mode);
  return dst.data == j.dst;
}

bool Vips(const Job& j) {
  vips_concurrency_set(1);
  VipsImage *whole = vips_image_new_from_memory(j.src, 3UL * j.src_w * j.src_h, j.src_w, j.src_h, 3,
                                                VIPS_FORMAT_UCHAR),
            *crop = nullptr, *small = nullptr;
  bool ok = whole && !vips_extract_area(whole, &crop, j.x, j.y, j.w, j.h, nullptr) &&
            !vips_resize(crop, &small, double(j.dst_w) / j.w, "vscale", double(j.dst_h) / j.h, "kernel",
                         VIPS_KERNEL_LINEAR, nullptr);
  size_t n = 0;
  void* p = ok && small->Xsize == j.dst_w && small->Ysize == j.dst_h ? vips_image_write_to_memory(small, &n)
                                                                     : nullptr;
  if (p) std::memcpy(j.dst, p, n);
  g_free(p);
  for (VipsImage* i : {small, crop, whole})
    if (i) g_object_unref(i);
  return p;
}

bool Yuv(const Job& j) {
  Buffer in(4UL * j.w * j.h), out(4UL * j.dst_w * j.dst_h);
  libyuv::RAWToARGB(Corner(j), 3 * j.src_w, in.at64(), 4 * j.w, j.w, j.h);
  return !libyuv::ARGBScale(in.at64(), 4 * j.w, j.w, j.h, out.at64(), 4 * j.dst_w, j.dst_w, j.dst_h,
                            libyuv::kFilterBox) &&
         !libyuv::ARGBToRAW(out.at64(), 4 * j.dst_w, j.dst, 3 * j.dst_w, j.dst_w, j.dst_h);
}

bool Imlib(const Job& j) {
  Buffer in(4UL * j.w * j.h);
  libyuv::RAWToARGB(Corner(j), 3 * j.src_w, in.at64(), 4 * j.w, j.w, j.h);
  Imlib_Image src = imlib_create_image_using_data(j.w, j.h, reinterpret_cast<uint32_t*>(in.at64()));
  imlib_context_set_image(src);
  imlib_context_set_anti_alias(1);
  Imlib_Image dst = imlib_create_cropped_scaled_image(0, 0, j.w, j.h, j.dst_w, j.dst_h);
  imlib_free_image();
  if (!dst) return false;
  imlib_context_set_image(dst);
  libyuv::ARGBToRAW(reinterpret_cast<const uint8_t*>(imlib_image_get_data_for_reading_only()), 4 * j.dst_w,
                    j.dst, 3 * j.dst_w, j.dst_w, j.dst_h);
  imlib_free_image();
  return true;
}

bool Magick(const Job& j) {
  static const bool ready = (InitializeMagick(nullptr), SetMagickResourceLimit(ThreadsResource, 1));
  std::vector<uint8_t> crop;
  for (int y = 0; y < j.h; ++y)
    crop.insert(crop.end(), Corner(j) + 3UL * y * j.src_w, Corner(j) + 3UL * y * j.src_w + 3 * j.w);
  ExceptionInfo e;
  GetExceptionInfo(&e);
  Image* src = ConstituteImage(j.w, j.h, "RGB", CharPixel, crop.data(), &e);
  Image* dst = ready && src ? ResizeImage(src, j.dst_w, j.dst_h, TriangleFilter, 1.0, &e) : nullptr;
  const bool ok = dst && DispatchImage(dst, 0, 0, j.dst_w, j.dst_h, "RGB", CharPixel, j.dst, &e);
  if (dst) DestroyImage(dst);
  if (src) DestroyImage(src);
  DestroyExceptionInfo(&e);
  return ok;
}

struct Candidate {
  const char* name;
  bool (*resize)(const Job&);
};
const Candidate kCandidates[] = {{"zimg BILINEAR [planar]", Zimg},
                                 {"swscale BILINEAR, rgb24", Sws<AV_PIX_FMT_RGB24>},
                                 {"swscale BILINEAR, R G B planes [planar]", Sws<AV_PIX_FMT_YUV444P>},
                                 {"OpenCV INTER_AREA", Cv<cv::INTER_AREA>},
                                 {"OpenCV INTER_LINEAR_EXACT", Cv<cv::INTER_LINEAR_EXACT>},
                                 {"libvips resize, linear", Vips},
                                 {"libyuv kFilterBox", Yuv},
                                 {"Imlib2 anti-alias", Imlib},
                                 {"GraphicsMagick Triangle", Magick},
                                 {"own, scalar", OwnScalar},
                                 {"own, AVX2", OwnSimd}};

template <typename F>
double MedianMs(int reps, F f) {
  std::vector<double> ms;
  for (int i = 0; i < reps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(ms.begin(), ms.begin() + reps / 2, ms.end());
  return ms[reps / 2];
}
}  // namespace

extern "C" {
const char* Name(unsigned i) {
  return i < std::size(kCandidates) ? kCandidates[i].name : nullptr;
}
bool Resize(unsigned i, const Job* job) {
  return kCandidates[i].resize(*job);
}
double TimeResize(unsigned i, const Job* job, int reps) {
  return MedianMs(reps, [&] { kCandidates[i].resize(*job); });
}
double TimeDecode(const uint8_t* jpeg, unsigned long size, uint8_t* rgb, int w, int h, int reps) {
  tjhandle t = tjInitDecompress();
  const double ms = MedianMs(reps, [&] { tjDecompress2(t, jpeg, size, rgb, w, 0, h, TJPF_RGB, 0); });
  tjDestroy(t);
  return ms;
}
}
