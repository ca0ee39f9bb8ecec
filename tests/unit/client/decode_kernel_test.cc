// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the kernel behind the JPEG engines (tests/support/decode_on_host.h) against the daemon's
// decoder and resampler. libjpeg stands for the engines: it gives the planes before chroma is interpolated.
#include <cstdio>
// After cstdio, whose FILE it needs:
#include <jpeglib.h>

#include <algorithm>
#include <cstring>

#include "client/src/decode_planes.h"
#include "server/transform/gpu_plan.h"
#include "tests/support/decode_on_host.h"
#include "tests/support/planned_images.h"
#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

struct Planes {
  JpegFrame frame;
  PlaneLayout layout;
  std::vector<uint8_t> bytes;
};

// The planes as an engine writes them, whole blocks included.
Planes PlanesOfFile(const std::vector<std::byte>& file) {
  jpeg_decompress_struct cinfo{};
  jpeg_error_mgr error{};
  cinfo.err = jpeg_std_error(&error);  // whose error_exit ends the test program
  jpeg_create_decompress(&cinfo);
  jpeg_mem_src(&cinfo, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&cinfo, TRUE);
  cinfo.raw_data_out = TRUE;
  cinfo.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&cinfo);
  Planes planes;
  planes.frame = {.width = cinfo.image_width,
                  .height = cinfo.image_height,
                  .components = static_cast<uint32_t>(cinfo.num_components),
                  .h_shift = cinfo.max_h_samp_factor == 2 && cinfo.num_components == 3 ? 1U : 0U,
                  .v_shift = cinfo.max_v_samp_factor == 2 && cinfo.num_components == 3 ? 1U : 0U,
                  .sequential = true};
  planes.layout = PlanesOf(planes.frame, EngineOutput::kPlanes);
  planes.bytes.assign(planes.layout.bytes, 0x5A);
  const auto rows_at_once = static_cast<JDIMENSION>(DCTSIZE * cinfo.max_v_samp_factor);
  while (cinfo.output_scanline < cinfo.output_height) {
    uint8_t* rows[3][2 * DCTSIZE];
    uint8_t** components[3] = {rows[0], rows[1], rows[2]};
    for (uint32_t p = 0; p < planes.layout.planes; ++p) {
      const uint32_t shift = p == 0 ? 0 : planes.frame.v_shift;
      for (uint32_t i = 0; i < rows_at_once; ++i)
        rows[p][i] = planes.bytes.data() + planes.layout.start[p] +
                     uint64_t{planes.layout.pitch[p]} *
                         ((cinfo.output_scanline >> shift) + i % (rows_at_once >> shift));
    }
    jpeg_read_raw_data(&cinfo, components, rows_at_once);
  }
  jpeg_finish_decompress(&cinfo);
  jpeg_destroy_decompress(&cinfo);
  return planes;
}

std::vector<uint8_t> RunKernel(const Planes& planes, const ImagePlan& plan, int32_t height, int32_t width) {
  DecodeImages work{};
  work.height = static_cast<uint32_t>(height);
  work.width = static_cast<uint32_t>(width);
  work.channels = 3;
  std::vector<uint8_t> out(size_t{3} * work.height * work.width);
  DecodedImage image{};
  Describe(plan, planes.frame, planes.layout, image);
  for (uint32_t p = 0; p < planes.layout.planes; ++p)
    image.plane[p] = planes.bytes.data() + planes.layout.start[p];
  image.out = out.data();
  MakeOnHost(work, image);
  return out;
}

// The same as pixels, whose chroma is interpolated already.
Planes PixelsOfFile(const std::vector<std::byte>& file, const JpegFrame& frame) {
  Planes planes{frame, PlanesOf(frame, EngineOutput::kRgb), {}};
  planes.bytes.assign(planes.layout.bytes, 0x5A);
  ImageDecoder decoder;
  const Result<ImageView> whole = DecodeImage(file, decoder);
  PF_CHECK(whole.ok(), whole.status().message());
  for (int32_t y = 0; y < whole->height; ++y)
    std::memcpy(&planes.bytes[static_cast<size_t>(y) * planes.layout.pitch[0]], whole->Row(y),
                size_t{3} * frame.width);
  return planes;
}

class DecodeKernelTest : public ::testing::Test {
 protected:
  // Compares one sample of the chain. Where a sum is just between two levels, the rounding differs by one.
  void Compare(const std::vector<std::byte>& file, const std::vector<TransformSpec>& specs, uint64_t sample) {
    const Planes planes = PlanesOfFile(file);
    ASSERT_OK_AND_ASSIGN(const GeometryPlan plan, worker_.Plan(file, ChainOf(specs), sample));
    const std::optional<ImagePlan> planned = PlanForGpu(
        plan, {static_cast<int32_t>(planes.frame.width), static_cast<int32_t>(planes.frame.height)});
    ASSERT_TRUE(planned.has_value());
    const bool one_step = plan.steps.size() == 1;
    const int32_t height = one_step ? plan.steps.back().height : plan.steps.back().crop.height;
    const int32_t width = one_step ? plan.steps.back().width : plan.steps.back().crop.width;
    ASSERT_OK(CheckImagePlan(*planned, static_cast<uint32_t>(height), static_cast<uint32_t>(width)));
    ASSERT_OK(CheckJpegFrame(*planned, planes.frame));
    ASSERT_OK_AND_ASSIGN(const std::vector<uint8_t> expected, worker_.Make(file, plan));
    const std::vector<uint8_t> made = RunKernel(planes, *planned, height, width);
    EXPECT_EQ(made, RunKernel(PixelsOfFile(file, planes.frame), *planned, height, width));
    ASSERT_EQ(made.size(), expected.size());
    int most = 0;
    size_t different = 0;
    for (size_t i = 0; i < made.size(); ++i) {
      most = std::max(most, std::abs(int{made[i]} - int{expected[i]}));
      different += made[i] != expected[i] ? 1 : 0;
    }
    EXPECT_LE(most, 1) << "sample " << sample;
    EXPECT_LE(different, made.size() / 20) << "sample " << sample;
    if (planned->resized_width == planned->crop_width && planned->resized_height == planned->crop_height) {
      EXPECT_EQ(different, 0U);
    }
  }

  WorkerPath worker_;
};

TEST_F(DecodeKernelTest, ColoursAreThoseOfLibjpeg) {
  const std::pair<int, int> samplings[] = {{1, 1}, {2, 1}, {2, 2}, {0, 0}};
  uint32_t seed = 0;
  for (const auto& [horizontal, vertical] : samplings) {
    for (const int width : {1, 2, 4, 5, 6, 31, 64}) {
      for (const int height : {1, 2, 3, 17, 32}) {
        const auto file = MakeJpeg(
            {.width = width, .height = height, .horizontal = horizontal, .vertical = vertical}, ++seed);
        Compare(file, {CenterCrop{static_cast<uint32_t>(height), static_cast<uint32_t>(width)}}, 0);
      }
    }
  }
}

TEST_F(DecodeKernelTest, CropsAndResizesAreTheDaemons) {
  const char* const interpolations[] = {"nearest", "bilinear", "bicubic", "lanczos"};
  uint32_t seed = 0;
  for (const char* const interpolation : interpolations) {
    for (const int side : {97, 150}) {
      const auto file =
          MakeJpeg({.width = side + 33, .height = side, .horizontal = 2, .vertical = side % 2 + 1}, ++seed);
      for (uint64_t sample = 0; sample < 4; ++sample) {
        Compare(file,
                {RandomVerticalFlip{}, RandomHorizontalFlip{},
                 Interpolated(RandomResizedCrop{40, 52}, {interpolation})},
                sample);
        Compare(file,
                {Interpolated(Resize{0, 48}, {interpolation}), CenterCrop{32, 40}, RandomVerticalFlip{}},
                sample);
        Compare(file, {Interpolated(Resize{181, 7}, {interpolation})}, sample);
      }
    }
  }
}

TEST_F(DecodeKernelTest, GrayscaleComesBeforeTheResize) {
  const auto file = MakeJpeg({.width = 120, .height = 90}, 7);
  for (uint64_t sample = 0; sample < 3; ++sample)
    Compare(file, {CenterCrop{80, 80}, Grayscale{3}, Interpolated(Resize{33, 47}, {"bicubic"})}, sample);
}

// The daemon adds up the scale, and its sums round. So does the kernel: a pixel aside would be another one.
TEST_F(DecodeKernelTest, NearestRoundsLikeTheDaemon) {
  const auto file = MakeJpeg({.width = 500, .height = 300, .horizontal = 1, .vertical = 1}, 8);
  for (const uint32_t side : {150U, 90U, 333U}) {
    Compare(file, {Interpolated(Resize{side, side}, {"nearest"})}, 0);
    Compare(file,
            {RandomVerticalFlip{1}, RandomHorizontalFlip{1}, Interpolated(Resize{side, side}, {"nearest"})},
            0);
  }
}

}  // namespace
}  // namespace pinfeed
