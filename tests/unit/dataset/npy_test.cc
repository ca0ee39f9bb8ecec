// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "tests/unit/dataset/npy_file.h"
#include "tests/unit/dataset/open_local.h"

namespace pinfeed {
namespace {

namespace fs = std::filesystem;

// Element i of an array of `count` elements of `size` bytes is a pattern of i, so that a wrong place or a
// wrong order shows.
std::string Pattern(size_t count, size_t size, bool reversed = false) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    std::string element;
    for (size_t b = 0; b < size; ++b) element += static_cast<char>(i * 31 + b * 7 + 1);
    bytes.append(reversed ? std::string(element.rbegin(), element.rend()) : element);
  }
  return bytes;
}

class NpyTest : public ::testing::Test {
 protected:
  std::string Path(std::string_view below) const { return dir_ / below; }
  Result<std::shared_ptr<const Dataset>> Open(std::string_view name) const {
    return OpenLocal(dir_, name, "npy");
  }
  static std::string Sample(const Dataset& dataset, uint64_t id, size_t field) {
    const auto bytes = dataset.info().fields[field].spec.SampleBytes();
    EXPECT_OK(bytes);
    std::vector<std::byte> out(*bytes);
    EXPECT_OK(dataset.ReadTensor(id, field, out));
    return {reinterpret_cast<const char*>(out.data()), out.size()};
  }

  TempDir dir_;
};

struct ElementCase {
  std::string code;
  DType dtype;
  size_t size;
  size_t swapped;  // bytes that change places together
};

TEST_F(NpyTest, ReadsEveryElementTypeInBothByteOrders) {
  const std::vector<ElementCase> cases = {
      {"b1", DType::kBool, 1, 1},      {"u1", DType::kUint8, 1, 1},       {"i1", DType::kInt8, 1, 1},
      {"u2", DType::kUint16, 2, 2},    {"i2", DType::kInt16, 2, 2},       {"u4", DType::kUint32, 4, 4},
      {"i4", DType::kInt32, 4, 4},     {"u8", DType::kUint64, 8, 8},      {"i8", DType::kInt64, 8, 8},
      {"f2", DType::kFloat16, 2, 2},   {"f4", DType::kFloat32, 4, 4},     {"f8", DType::kFloat64, 8, 8},
      {"c8", DType::kComplex64, 8, 4}, {"c16", DType::kComplex128, 16, 8}};
  for (const ElementCase& c : cases) {
    for (const char order : {'<', '>', '|'}) {
      if (order == '|' && c.size > 1) continue;
      SCOPED_TRACE(order + c.code);
      const size_t words = 6 * c.size / c.swapped;
      dir_.Write("a.npy",
                 NpyHeaderBytes(order + c.code, "(3, 2)", false) + Pattern(words, c.swapped, order == '>'));
      ASSERT_OK_AND_ASSIGN(const auto dataset, Open("a.npy"));
      EXPECT_EQ(dataset->info().samples, 3U);
      EXPECT_EQ(dataset->info().fields[0].spec, (TensorSpec{"data", c.dtype, {2}}));
      for (uint64_t id = 0; id < 3; ++id) {
        EXPECT_EQ(Sample(*dataset, id, 0), Pattern(words, c.swapped).substr(id * 2 * c.size, 2 * c.size));
      }
    }
  }
}

TEST_F(NpyTest, ReadsValuesNotOnlyBytes) {
  const std::string big_endian_pi("\x40\x49\x0f\xdb", 4);
  dir_.Write("a.npy", NpyHeaderBytes(">f4", "(1,)", false) + big_endian_pi);
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("a.npy"));
  EXPECT_TRUE(dataset->info().fields[0].spec.shape.empty());
  const std::string sample = Sample(*dataset, 0, 0);
  EXPECT_FLOAT_EQ(ValuesOf<float>(std::as_bytes(std::span(sample)))[0], 3.14159274F);
}

TEST_F(NpyTest, ReadsAllThreeFormatVersions) {
  for (const int major : {1, 2, 3}) {
    dir_.Write("a.npy", NpyHeaderBytes("<i4", "(2,)", false, major) + RawBytes<int32_t>({7, -8}));
    ASSERT_OK_AND_ASSIGN(const auto dataset, Open("a.npy"));
    EXPECT_EQ(Sample(*dataset, 1, 0), RawBytes<int32_t>({-8}));
  }
}

// The file that np.save(np.asfortranarray(a)) makes of an array whose C-order element at index x is x.
std::string FortranFile(const std::vector<int64_t>& shape, const std::string& shape_text, bool big_endian) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  std::vector<uint32_t> elements(static_cast<size_t>(count));
  for (int64_t c_index = 0; c_index < count; ++c_index) {
    int64_t rest = c_index;
    int64_t fortran_index = 0;
    int64_t stride = count;
    for (size_t axis = shape.size(); axis-- > 0;) {
      stride /= shape[axis];
      fortran_index += rest % shape[axis] * stride;
      rest /= shape[axis];
    }
    const auto value = static_cast<uint32_t>(c_index);
    elements[static_cast<size_t>(fortran_index)] = big_endian ? __builtin_bswap32(value) : value;
  }
  return NpyHeaderBytes(big_endian ? ">u4" : "<u4", shape_text, true) + RawBytes(elements);
}

void ExpectConsecutive(const std::string& sample, uint32_t first) {
  std::vector<uint32_t> expected(sample.size() / 4);
  std::iota(expected.begin(), expected.end(), first);
  EXPECT_EQ(ValuesOf<uint32_t>(std::as_bytes(std::span(sample))), expected);
}

TEST_F(NpyTest, GathersFortranOrderIntoCOrder) {
  for (const bool big_endian : {false, true}) {
    dir_.Write("a.npy", FortranFile({3, 4, 5, 2}, "(3, 4, 5, 2)", big_endian));
    ASSERT_OK_AND_ASSIGN(const auto dataset, Open("a.npy"));
    for (uint32_t id = 0; id < 3; ++id) ExpectConsecutive(Sample(*dataset, id, 0), id * 40);
  }
}

TEST_F(NpyTest, GathersFortranOrderOverManyWindowsAndOneByOne) {
  // 40 bytes between elements: 1,639 elements a window, four windows. Then 8,000 bytes between them: each by
  // itself.
  dir_.Write("dense.npy", FortranFile({10, 70, 71}, "(10, 70, 71)", false));
  dir_.Write("wide.npy", FortranFile({2000, 3, 4}, "(2000, 3, 4)", false));
  ASSERT_OK_AND_ASSIGN(const auto dense, Open("dense.npy"));
  ASSERT_OK_AND_ASSIGN(const auto wide, Open("wide.npy"));
  for (uint32_t id = 0; id < 10; ++id) ExpectConsecutive(Sample(*dense, id, 0), id * 4970);
  for (uint32_t id = 0; id < 2000; ++id) ExpectConsecutive(Sample(*wide, id, 0), id * 12);
}

TEST_F(NpyTest, FortranOrderOfOneDimensionIsCOrder) {
  dir_.Write("a.npy", NpyHeaderBytes("<i4", "(3,)", true) + RawBytes<int32_t>({1, 2, 3}));
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("a.npy"));
  EXPECT_EQ(Sample(*dataset, 2, 0), RawBytes<int32_t>({3}));
}

TEST_F(NpyTest, ADirectoryGivesOneFieldPerFile) {
  dir_.Write("set/label.npy", NpyHeaderBytes("<i8", "(2,)", false) + RawBytes<int64_t>({5, 6}));
  dir_.Write("set/image.npy", NpyHeaderBytes("|u1", "(2, 3)", false) + "abcdef");
  dir_.Write("set/README", "not an array");
  dir_.Write("set/._label.npy", "what macOS stores beside it");
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("set"));
  const DatasetInfo& info = dataset->info();
  EXPECT_EQ(info.format, "npy");
  EXPECT_EQ(info.path, "as named");
  EXPECT_EQ(info.samples, 2U);
  ASSERT_EQ(info.fields.size(), 2U);
  EXPECT_EQ(info.fields[0].spec, (TensorSpec{"image", DType::kUint8, {3}}));
  EXPECT_EQ(info.fields[1].spec, (TensorSpec{"label", DType::kInt64, {}}));
  EXPECT_EQ(Sample(*dataset, 1, 0), "def");
  EXPECT_EQ(Sample(*dataset, 1, 1), RawBytes<int64_t>({6}));
  EXPECT_EQ(dataset->Describe(1), Path("set") + "[1]");
  dir_.Write("set/mask.NPY", NpyHeaderBytes("|u1", "(2, 3)", false) + "abcdef");
  EXPECT_THAT(Open("set"), StatusIs(Code::kInvalidArgument, HasSubstr("'mask.NPY' would be left out")));
}

TEST_F(NpyTest, RefusesDirectoriesThatAreNoColumns) {
  dir_.Write("set/README", "");
  EXPECT_THAT(Open("set"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path("set")), HasSubstr("no .npy file"))));
  dir_.Write("set/a.npy", NpyHeaderBytes("|u1", "(2,)", false) + "ab");
  dir_.Write("set/b.npy", NpyHeaderBytes("|u1", "(3,)", false) + "abc");
  EXPECT_THAT(Open("set"), StatusIs(Code::kInvalidArgument,
                                    AllOf(HasSubstr(Path("set/b.npy") + "': its first dimension is 3"),
                                          HasSubstr(Path("set/a.npy") + "' is 2"))));
  fs::remove(Path("set/b.npy"));
  fs::create_directory(Path("set/c.npy"));
  EXPECT_THAT(Open("set"),
              StatusIs(Code::kInvalidArgument, HasSubstr(Path("set/c.npy") + "': it is a directory")));
  fs::remove(Path("set/c.npy"));
  dir_.Write("set/.npy", NpyHeaderBytes("|u1", "(2,)", false) + "ab");
  EXPECT_THAT(Open("set"), StatusIs(Code::kInvalidArgument, HasSubstr("names the field")));
  fs::remove(Path("set/.npy"));
  dir_.Write("set/x\ny.npy", NpyHeaderBytes("|u1", "(2,)", false) + "ab");
  EXPECT_THAT(Open("set"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("x\\ny.npy"), Not(HasSubstr("\n")))));
  fs::remove(Path("set/x\ny.npy"));
  fs::create_symlink("/etc/passwd", Path("set/d.npy"));
  EXPECT_THAT(Open("set"), StatusIs(Code::kPermissionDenied, HasSubstr(Path("set/d.npy"))));
}

TEST_F(NpyTest, RefusesOneFilePerSample) {
  for (size_t i = 0; i <= 256; ++i) dir_.Write("set/" + std::to_string(i) + ".npy", "");
  EXPECT_THAT(Open("set"), StatusIs(Code::kInvalidArgument,
                                    HasSubstr("more than 256 .npy files; each file is one field")));
}

TEST_F(NpyTest, AHeaderThatLiesAboutTheSizeIsRefusedWithBothNumbers) {
  const std::string header = NpyHeaderBytes("<f4", "(4, 2)", false);
  ASSERT_EQ(header.size(), 64U + 64U);
  dir_.Write("short.npy", header + std::string(31, 'x'));
  dir_.Write("long.npy", header + std::string(33, 'x'));
  EXPECT_THAT(Open("short.npy"),
              StatusIs(Code::kDataLoss, AllOf(HasSubstr(Path("short.npy")), HasSubstr("128 + 32 bytes"),
                                              HasSubstr("has 159"))));
  EXPECT_THAT(Open("long.npy"),
              StatusIs(Code::kDataLoss, AllOf(HasSubstr(Path("long.npy")), HasSubstr("has 161"))));
  dir_.Write("huge.npy", NpyHeaderBytes("<f8", "(1000000000000, 1000000)", false));
  EXPECT_THAT(Open("huge.npy"),
              StatusIs(Code::kDataLoss, HasSubstr("8000000000000000000 bytes, but the file has 128")));
}

TEST_F(NpyTest, ErrorsOfTheHeaderNameTheFile) {
  dir_.Write("a.npy", NpyHeaderBytes("|O", "(2,)", false) + "ab");
  EXPECT_THAT(Open("a.npy"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path("a.npy")), HasSubstr("Python objects"))));
  dir_.Write("b.npy", "");
  EXPECT_THAT(Open("b.npy"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path("b.npy")), HasSubstr("only 0 bytes"))));
  dir_.Write("c.npy", NpyHeaderBytes("|u1", "(2,)", false).substr(0, 60));
  EXPECT_THAT(Open("c.npy"),
              StatusIs(Code::kDataLoss, AllOf(HasSubstr(Path("c.npy")), HasSubstr("the file has 60"))));
  dir_.Write("d.npy", NpyHeaderBytes("|u1", "()", false) + "a");
  EXPECT_THAT(Open("d.npy"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path("d.npy")), HasSubstr("is a scalar"))));
  EXPECT_THAT(Open("gone.npy"), StatusIs(Code::kNotFound, HasSubstr(Path("gone.npy"))));
}

TEST_F(NpyTest, AFileCutAfterwardsIsDataLoss) {
  dir_.Write("a.npy", NpyHeaderBytes("|u1", "(2, 4)", false) + "abcdefgh");
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("a.npy"));
  fs::resize_file(Path("a.npy"), fs::file_size(Path("a.npy")) - 1);
  EXPECT_EQ(Sample(*dataset, 0, 0), "abcd");
  std::vector<std::byte> out(4);
  EXPECT_THAT(dataset->ReadTensor(1, 0, out),
              StatusIs(Code::kDataLoss, AllOf(HasSubstr(Path("a.npy")), HasSubstr("after 3 of them"))));
}

TEST_F(NpyTest, SparseFilesOfManyTebibytesRead) {
  const std::string header = NpyHeaderBytes("|u1", "(4294967296, 1024)", false);
  dir_.Write("a.npy", header);
  std::error_code error;
  fs::resize_file(Path("a.npy"), header.size() + (uint64_t{1} << 42), error);
  if (error) GTEST_SKIP() << "this file system has no files of 4 TiB: " << error.message();
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("a.npy"));
  EXPECT_EQ(dataset->info().samples, uint64_t{1} << 32);
  EXPECT_EQ(Sample(*dataset, (uint64_t{1} << 32) - 1, 0), std::string(1024, '\0'));
}

TEST_F(NpyTest, FingerprintFollowsShapesAndNames) {
  const auto fingerprint = [&](std::string_view field, std::string_view descr, std::string_view shape,
                               size_t bytes) {
    const TempDir dir;
    dir.Write(std::string(field) + ".npy", NpyHeaderBytes(descr, shape, false) + std::string(bytes, 'x'));
    const auto dataset = OpenLocal(dir, "", "npy");
    EXPECT_OK(dataset);
    return (*dataset)->info().fingerprint;
  };
  const std::string before = fingerprint("a", "|u1", "(2, 4)", 8);
  EXPECT_EQ(before.size(), 16U);
  EXPECT_EQ(fingerprint("a", "|u1", "(2, 4)", 8), before);
  EXPECT_NE(fingerprint("b", "|u1", "(2, 4)", 8), before);
  EXPECT_NE(fingerprint("a", "|i1", "(2, 4)", 8), before);
  EXPECT_NE(fingerprint("a", "|u1", "(4, 2)", 8), before);
  EXPECT_NE(fingerprint("a", "|u1", "(2, 2, 2)", 8), before);
}

}  // namespace
}  // namespace pinfeed
