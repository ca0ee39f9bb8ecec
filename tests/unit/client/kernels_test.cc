// SPDX-License-Identifier: Apache-2.0
// The device code of the client's kernels, run by threads of the processor: one for each of a block's, or one
// for all where they do not wait for each other.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/samples_on_host.h"
#include "tests/support/testing.h"
#include "tests/unit/client/nvcc_on_host.h"

// Behind what it needs of nvcc.
#include "client/kernels/convert_image.cu"
#include "tests/support/make_image.h"

namespace pinfeed {
namespace {

static_assert(kDecodeThreads == kConvertThreads && kGatherThreads == kConvertThreads, "of the barrier");

// One block after the other, since they share the memory that a block has for itself.
template <typename Block>
void RunBlocks(unsigned blocks, const Block& block) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kConvertThreads; ++t) {
    threads.emplace_back([&, t] {
      threadIdx.x = t;
      for (unsigned b = 0; b < blocks; ++b) {
        block(b);
        block_barrier.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Launch(const GatherSamples& work, unsigned element_bytes, unsigned blocks) {
  gridDim.x = blocks;
  RunBlocks(blocks, [&](unsigned b) {
    blockIdx.x = b;
    if (element_bytes == 1) GatherSamples1(work);
    if (element_bytes == 2) GatherSamples2(work);
    if (element_bytes == 4) GatherSamples4(work);
  });
}

void Launch(const DecodeImages& work) {
  const unsigned tiles = (work.width + kDecodeTileWidth - 1) / kDecodeTileWidth *
                         ((work.height + kDecodeTileHeight - 1) / kDecodeTileHeight);
  RunBlocks(tiles * work.count, [&](unsigned b) {
    blockIdx = {b % tiles, b / tiles};
    ::DecodeImages(work);
  });
}

void Launch(const GatherRows& work) {
  RunBlocks(work.samples, [&](unsigned b) {
    blockIdx.x = b;
    ::GatherRows(work);
  });
}

class Noise {
 public:
  uint32_t Next() { return (state_ = state_ * 1664525 + 1013904223) >> 8; }
  std::vector<uint8_t> Bytes(size_t count) {
    std::vector<uint8_t> bytes(count);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(Next());
    return bytes;
  }

 private:
  uint32_t state_ = 7;
};

struct Case {
  uint32_t source_height, source_width, height, width;
  int32_t crop_x, crop_y;
  uint32_t positions_x, positions_y;
  BorderMode border;
};

constexpr uint32_t kDataset = 37;

// All memory has words behind what is written, which must not change.
class SamplesKernelTest : public ::testing::Test {
 protected:
  static constexpr size_t kGuard = 64;

  void Run(const Case& c, uint32_t samples, unsigned element_bytes, uint32_t channels, bool source_chw,
           bool out_chw, unsigned blocks) {
    const size_t source_bytes = size_t{c.source_height} * c.source_width * channels;
    const size_t out_bytes = size_t{c.height} * c.width * channels * samples * element_bytes;
    const std::vector<uint8_t> pixels = noise_.Bytes(source_bytes * kDataset);
    std::vector<uint32_t> indexes(samples);
    for (uint32_t& index : indexes) index = noise_.Next() % kDataset;
    if (samples > 3) {
      indexes[1] |= 1U << 31;
      indexes[2] = kDataset;  // not the daemon's
      indexes[3] = UINT32_MAX;
    }
    GatherSamples work{};
    work.indexes = indexes.data();
    work.samples = samples;
    work.dataset_samples = kDataset;
    work.epoch = 3;
    work.pixels = pixels.data();
    work.channels = channels;
    work.source_chw = source_chw ? 1 : 0;
    work.out_chw = out_chw ? 1 : 0;
    for (uint32_t& entry : work.table) entry = noise_.Next();
    work.view.seed = 11;
    work.view.source_height = c.source_height;
    work.view.source_width = c.source_width;
    work.view.height = c.height;
    work.view.width = c.width;
    work.view.crop_x = c.crop_x;
    work.view.crop_y = c.crop_y;
    work.view.positions_x = c.positions_x;
    work.view.positions_y = c.positions_y;
    work.view.border = static_cast<uint32_t>(c.border);
    for (uint32_t& value : work.view.fill) value = noise_.Next() & 0xFF;
    work.view.steps[0] = {0.5, 0, ViewStep::kFlip};
    work.view.steps[1] = {0, 1, ViewStep::kCrop};
    work.view.steps[2] = {0.5, 2, ViewStep::kFlipVertical};
    work.view.step_count = 3;
    // Beside tensors of which samples are words of every size.
    const size_t sizes[] = {1, 3, 4, 8, 12, 16, 48, 4096, 0};
    std::vector<std::vector<uint8_t>> sources, outs, expected;
    for (const size_t bytes : sizes) {
      sources.push_back(noise_.Bytes(bytes * kDataset));
      outs.emplace_back(bytes * samples + kGuard, 0xAB);
      expected.push_back(outs.back());
      work.copies[work.copy_count] = {sources.back().data(), outs.back().data(), bytes};
      ++work.copy_count;
    }
    std::vector<uint8_t> out(out_bytes + kGuard, 0xCD);
    work.out = out.data();
    Launch(work, element_bytes, blocks);
    std::vector<uint8_t> expected_out(out_bytes + kGuard, 0xCD);
    work.out = expected_out.data();
    for (uint32_t i = 0; i < work.copy_count; ++i) work.copies[i].out = expected[i].data();
    MakeSamplesOnHost(work, element_bytes);
    EXPECT_EQ(outs, expected);
    ASSERT_EQ(std::memcmp(out.data(), expected_out.data(), out.size()), 0)
        << c.height << " x " << c.width << ", " << samples << " samples, elements of " << element_bytes
        << ", " << channels << " channels, " << source_chw << out_chw << ", " << blocks << " blocks";
  }

  Noise noise_;
};

TEST_F(SamplesKernelTest, MakesWhatItPromises) {
  const Case cases[] = {
      {16, 20, 16, 20, 0, 0, 1, 1, BorderMode::kConstant},    // whole words
      {32, 32, 32, 32, -4, -4, 9, 9, BorderMode::kConstant},  // crops with padding
      {16, 20, 12, 16, 0, 2, 5, 3, BorderMode::kConstant},    // crops within
      {17, 19, 13, 11, -3, -2, 9, 7, BorderMode::kReflect},   // no whole words
      {5, 7, 9, 30, -12, -9, 3, 8, BorderMode::kSymmetric},   // larger than the image
      {3, 8, 4, 8, -20, -20, 40, 40, BorderMode::kEdge},      // beside the image
      {1, 1, 1, 1, 0, 0, 1, 1, BorderMode::kConstant},
  };
  for (const Case& c : cases) {
    for (const unsigned element_bytes : {1U, 2U, 4U}) {
      const bool flag = element_bytes == 2;
      Run(c, 9, element_bytes, 3, true, true, 5);
      Run(c, 9, element_bytes, 3, false, !flag, 2);
      Run(c, 5, element_bytes, 1, flag, true, 3);
    }
  }
}

TEST_F(SamplesKernelTest, BlocksShareAnyNumberOfSamples) {
  const Case small{4, 4, 4, 4, -1, -1, 3, 3, BorderMode::kConstant};
  for (const uint32_t samples : {1U, 2U, 255U, 256U, 257U, 1024U})
    for (const unsigned blocks : {1U, 2U, 7U}) Run(small, samples, 2, 3, true, true, blocks);
  const Case large{64, 60, 64, 60, 0, 0, 1, 1, BorderMode::kConstant};
  for (const unsigned blocks : {1U, 3U, 40U}) Run(large, 2, 4, 3, false, true, blocks);
}

// The other kernels run with one thread a block.
class OneThreadTest : public ::testing::Test {
 protected:
  OneThreadTest() {
    blockDim.x = 1;
    threadIdx = blockIdx = {};
  }
  ~OneThreadTest() override { blockDim.x = kConvertThreads; }

  Noise noise_;
};

struct Layouts {
  bool source_chw, out_chw;
};

class ConvertKernelTest : public OneThreadTest {
 protected:
  // `shift`: of the source, in bytes, and of the output, in elements.
  template <typename Element>
  void Run(uint32_t width, uint32_t channels, Layouts layouts, size_t shift) {
    constexpr uint32_t kSamples = 3;
    constexpr uint32_t kHeight = 5;
    const size_t plane = size_t{kHeight} * width;
    const size_t pixels = plane * channels;
    const size_t stride = pixels + shift;
    const std::vector<uint8_t> source = noise_.Bytes((shift + stride * kSamples + 3) / 4 * 4);
    const std::vector<uint8_t> marks = {0, 1, 2};
    std::vector<Element> out(shift + pixels * kSamples + 1, Element{0x5A});
    std::vector<Element> expected = out;
    ConvertImage work{};
    work.source = source.data() + shift;
    work.mark = marks.data();
    work.out = out.data() + shift;
    work.sample_stride = stride;
    work.samples = kSamples;
    work.height = kHeight;
    work.width = width;
    work.channels = channels;
    work.source_chw = layouts.source_chw ? 1 : 0;
    work.out_chw = layouts.out_chw ? 1 : 0;
    for (uint32_t& entry : work.table) entry = noise_.Next();
    for (size_t i = 0; i < pixels * kSamples; ++i) {
      const size_t n = i / pixels;
      const size_t c = layouts.out_chw ? i % pixels / plane : i % channels;
      const size_t at = layouts.out_chw ? i % plane : i % pixels / channels;
      const size_t x = marks[n] == 1 ? width - 1 - at % width : at % width;
      const size_t from = at / width * width + x;
      const uint8_t byte =
          work.source[n * stride + (layouts.source_chw ? c * plane + from : from * channels + c)];
      expected[shift + i] = marks[n] == 2 ? Element{0} : static_cast<Element>(work.table[256 * c + byte]);
    }
    gridDim.x = 2;
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) Convert<Element>(work);
    ASSERT_EQ(out, expected) << width << " pixels, " << channels << " channels, elements of "
                             << sizeof(Element) << ", " << layouts.source_chw << layouts.out_chw
                             << ", shifted by " << shift;
  }
};

TEST_F(ConvertKernelTest, MakesWhatItPromises) {
  for (const uint32_t width : {1U, 2U, 7U, 8U, 9U, 16U, 23U, 40U}) {
    for (const uint32_t channels : {1U, 3U}) {
      for (const Layouts layouts : {Layouts{true, true}, {true, false}, {false, true}, {false, false}}) {
        for (const size_t shift : {0, 1, 2, 3, 4, 8, 13}) {
          Run<uint8_t>(width, channels, layouts, shift);
          Run<uint16_t>(width, channels, layouts, shift);
          Run<uint32_t>(width, channels, layouts, shift);
        }
      }
    }
  }
}

class CheckKernelTest : public OneThreadTest {
 protected:
  // Whether the kernel notices what the engine has left out, which wrote all rows before `stop`.
  bool Notices(const ImageAxis& x, const ImageAxis& y, int32_t stop) {
    constexpr uint32_t kPitch = 3 * 96;
    const uint64_t poison =
        (uint64_t{noise_.Next()} << 40 ^ uint64_t{noise_.Next()} << 20 ^ noise_.Next()) | 1;
    std::vector<uint8_t> pixels = noise_.Bytes(size_t{96} * kPitch);
    DecodedImage image{};
    image.pixels = pixels.data();
    image.pitch = kPitch;
    image.x = x;
    image.y = y;
    uint32_t unwritten = 0;
    pinfeed::DecodeImages work{};
    work.images = &image;
    work.unwritten = &unwritten;
    work.poison = poison;
    work.count = 1;
    const std::vector<uint8_t> stale = pixels;
    ForEachThread([&] { Poison(work); });
    EXPECT_NE(pixels, stale);
    for (size_t i = 0; i < static_cast<size_t>(stop) * kPitch; ++i)
      pixels[i] = static_cast<uint8_t>(noise_.Next());
    ForEachThread([&] { CheckWritten(work); });
    return unwritten != 0;
  }

 private:
  template <typename Call>
  static void ForEachThread(const Call& call) {
    for (threadIdx.x = 0; threadIdx.x < kDecodeThreads; ++threadIdx.x) call();
  }
};

TEST_F(CheckKernelTest, NoRowOfBlocksIsLeftOutUnnoticed) {
  for (int32_t top = 0; top < 40; top += 3) {
    for (int32_t rows = 1; rows < 50; rows += 2) {
      const ImageAxis x{.first = top, .region = 3 + rows, .resized = 1, .out = 0, .reverse = 0};
      const ImageAxis y{.first = top, .region = rows, .resized = 1, .out = 0, .reverse = 0};
      EXPECT_FALSE(Notices(x, y, 96));
      for (int32_t stop = 0; stop < top + rows; stop += 8)
        EXPECT_TRUE(Notices(x, y, stop))
            << "rows " << top << " to " << top + rows << ", written up to " << stop;
    }
  }
}

class DecodeImagesTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kPitch = 3 * 640;
  static constexpr int32_t kSide = 600;

  // Of images with this axis each way, one after the other upside down and grey.
  void Compare(const ImageAxis& axis, uint32_t height, uint32_t width, uint32_t channels) {
    std::vector<DecodedImage> images;
    std::vector<std::vector<uint8_t>> outputs;
    for (const uint32_t interpolation :
         {kInterpolateNearest, kInterpolateBilinear, kInterpolateBicubic, kInterpolateLanczos}) {
      DecodedImage image{};
      image.pixels = pixels_.data();
      image.pitch = kPitch;
      image.interpolation = interpolation;
      image.grayscale = interpolation % 2;
      image.upside_down = interpolation / 2;
      image.x = image.y = axis;
      images.push_back(image);
      outputs.emplace_back(size_t{height} * width * channels, 1);
    }
    for (size_t i = 0; i < images.size(); ++i) images[i].out = outputs[i].data();
    DecodeImages work{};
    work.images = images.data();
    work.count = static_cast<uint32_t>(images.size());
    work.height = height;
    work.width = width;
    work.channels = channels;
    Launch(work);
    for (size_t i = 0; i < images.size(); ++i) {
      std::vector<uint8_t> expected(outputs[i].size());
      images[i].out = expected.data();
      MakeImage(work, images[i]);
      size_t different = 0;
      for (size_t n = 0; n < expected.size(); ++n) {
        const int levels = std::abs(int{expected[n]} - int{outputs[i][n]});
        ASSERT_LE(levels, 1) << "filter " << i << ", byte " << n << ", region " << axis.region << " to "
                             << axis.resized;
        different += levels != 0 ? 1 : 0;
      }
      EXPECT_LE(different, expected.size() / 100) << "filter " << i;
    }
  }

 private:
  std::vector<uint8_t> pixels_ = Noise().Bytes(size_t{kSide} * kPitch);
};

// Tiles that are not full, some that need several strips of rows, filters with more taps than the tables
// have.
TEST_F(DecodeImagesTest, TilesAreWhatTheHostMakes) {
  Compare({.first = 3, .region = 40, .resized = 40, .out = 2, .reverse = 0}, 38, 33, 3);
  Compare({.first = 0, .region = 30, .resized = 70, .out = 5, .reverse = 1}, 60, 41, 3);
  Compare({.first = 10, .region = 90, .resized = 64, .out = 0, .reverse = 0}, 64, 64, 1);
  Compare({.first = 50, .region = 300, .resized = 45, .out = 1, .reverse = 1}, 43, 35, 3);
  Compare({.first = 0, .region = kSide, .resized = 9, .out = 0, .reverse = 0}, 9, 9, 3);
}

class GatherRowsKernelTest : public ::testing::Test {
 protected:
  // Of 12 rows, each twice its number. Sets what the kernel writes to memory for `max_rows`, and two more.
  void Run(const std::vector<int64_t>& extents, uint64_t max_rows) {
    const uint8_t source[24] = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11};
    rows_.assign(2 * (max_rows + 2), 99);
    extents_.assign(extents.size(), -1);
    const auto samples = static_cast<uint32_t>(extents.size() / 2);
    Launch({source, extents.data(), rows_.data(), extents_.data(), 2, 12, max_rows, samples});
  }

  std::vector<uint8_t> rows_;
  std::vector<int64_t> extents_;
};

TEST_F(GatherRowsKernelTest, RowsComeInTheOrderOfTheSamples) {
  Run({9, 2, 3, 0, 0, 3, 11, 1}, 6);
  EXPECT_THAT(rows_, ElementsAre(9, 9, 10, 10, 0, 0, 1, 1, 2, 2, 11, 11, 99, 99, 99, 99));
  EXPECT_THAT(extents_, ElementsAre(0, 2, 2, 0, 2, 3, 5, 1));
}

TEST_F(GatherRowsKernelTest, ExtentsOutsideOfTheSourceHaveNoRows) {
  Run({12, 1, 0, 13, -1, 1, INT64_MAX, 1, 1, INT64_MAX, 0, -1, 4, 1}, 1);
  EXPECT_THAT(rows_, ElementsAre(4, 4, 99, 99, 99, 99));
  EXPECT_THAT(extents_, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1));
}

TEST_F(GatherRowsKernelTest, RowsWithoutRoomAreLeftOut) {
  Run({0, 2, 4, 8, 3, 1}, 3);
  EXPECT_THAT(rows_, ElementsAre(0, 0, 1, 1, 99, 99, 99, 99, 99, 99));
  EXPECT_THAT(extents_, ElementsAre(0, 2, 2, 0, 10, 0));
}

}  // namespace
}  // namespace pinfeed
