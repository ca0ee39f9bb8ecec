// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/support/parameters.h"
#include "tests/unit/dataset/npy_file.h"
#include "tests/unit/dataset/open_local.h"

namespace pinfeed {
namespace {

namespace fs = std::filesystem;

// `count` tokens from the whole range of ids.
template <typename Token>
std::vector<Token> Stream(size_t count) {
  std::vector<Token> tokens(count);
  uint32_t state = 1;
  for (Token& token : tokens)
    token = static_cast<Token>((state = state * 2654435761U + 1) >> (sizeof(Token) == 2 ? 16 : 8));
  return tokens;
}

class TokensTest : public ::testing::Test {
 protected:
  std::string Path(std::string_view below) const { return dir_ / below; }
  Result<std::shared_ptr<const Dataset>> Open(std::string_view name, uint32_t length, uint32_t stride = 0,
                                              std::optional<DType> dtype = {}) const {
    ParameterMap options = {{"sequence_length", Number(length)}};
    if (stride != 0) options["stride"] = Number(stride);
    if (dtype) options["token_dtype"] = Word(std::string(DTypeName(*dtype)));
    return OpenLocal(dir_, name, "tokens", std::move(options));
  }
  static std::vector<int64_t> Sample(const Dataset& dataset, uint64_t id, size_t field) {
    std::vector<std::byte> out(static_cast<size_t>(dataset.info().fields[field].spec.shape[0]) * 8);
    EXPECT_OK(dataset.ReadTensor(id, field, out));
    return ValuesOf<int64_t>(out);
  }
  template <typename Token>
  static void ExpectSamples(const Dataset& dataset, const std::vector<Token>& tokens, size_t length,
                            size_t stride) {
    ASSERT_EQ(dataset.info().samples, (tokens.size() - (length + 1)) / stride + 1);
    for (uint64_t id = 0; id < dataset.info().samples; ++id) {
      for (const size_t field : {0U, 1U}) {
        const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(id * stride + field);
        ASSERT_EQ(Sample(dataset, id, field),
                  std::vector<int64_t>(first, first + static_cast<std::ptrdiff_t>(length)))
            << "sample " << id << " field " << field;
      }
    }
  }

  TempDir dir_;
};

TEST_F(TokensTest, YIsOneTokenAheadOfX) {
  dir_.Write("t.bin", RawBytes<uint16_t>({10, 11, 12, 13, 14, 15, 65535}));
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("t.bin", 3));
  const DatasetInfo& info = dataset->info();
  EXPECT_EQ(info.format, "tokens");
  EXPECT_EQ(info.path, "as named");
  EXPECT_EQ(info.samples, 2U);
  EXPECT_EQ(info.fingerprint.size(), 16U);
  ASSERT_EQ(info.fields.size(), 2U);
  EXPECT_EQ(info.fields[0].spec, (TensorSpec{"x", DType::kInt64, {3}}));
  EXPECT_EQ(info.fields[1].spec, (TensorSpec{"y", DType::kInt64, {3}}));
  EXPECT_EQ(Sample(*dataset, 1, 0), (std::vector<int64_t>{13, 14, 15}));
  EXPECT_EQ(Sample(*dataset, 1, 1), (std::vector<int64_t>{14, 15, 65535}));
  EXPECT_EQ(dataset->Describe(1), Path("t.bin") + "[1] (tokens 3 to 6)");
}

TEST_F(TokensTest, ReadsEveryLengthAndStride) {
  const std::vector<uint16_t> narrow = Stream<uint16_t>(1000);
  const std::vector<uint32_t> wide = Stream<uint32_t>(1000);
  dir_.Write("narrow.bin", RawBytes(narrow));
  dir_.Write("wide.bin", RawBytes(wide));
  for (const uint32_t length : {1U, 2U, 63U, 64U, 65U, 128U, 333U, 999U}) {
    for (const uint32_t stride : {0U, 1U, 64U, 500U, 5000U}) {
      ASSERT_OK_AND_ASSIGN(const auto from_narrow, Open("narrow.bin", length, stride));
      ExpectSamples(*from_narrow, narrow, length, stride == 0 ? length : stride);
      ASSERT_OK_AND_ASSIGN(const auto from_wide, Open("wide.bin", length, stride, DType::kUint32));
      ExpectSamples(*from_wide, wide, length, stride == 0 ? length : stride);
    }
  }
}

TEST_F(TokensTest, LargeIdsStayPositive) {
  dir_.Write("t.npy", NpyHeaderBytes("<u4", "(3,)", false) + RawBytes<uint32_t>({0xffffffff, 0x80000000, 7}));
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("t.npy", 2));
  EXPECT_EQ(Sample(*dataset, 0, 0), (std::vector<int64_t>{4294967295, 2147483648}));
}

TEST_F(TokensTest, LongSequencesAreReadInBlocks) {
  const std::vector<uint32_t> tokens = Stream<uint32_t>(50'000);
  dir_.Write("t.bin", RawBytes(tokens));
  for (const uint32_t length : {8192U, 8193U, 24'999U}) {
    ASSERT_OK_AND_ASSIGN(const auto dataset, Open("t.bin", length, 0, DType::kUint32));
    ExpectSamples(*dataset, tokens, length, length);
  }
}

TEST_F(TokensTest, PlacesNeedNoAlignment) {
  dir_.Write("t.bin", RawBytes(Stream<uint16_t>(200)));
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("t.bin", 100));
  std::vector<std::byte> out(801);
  ASSERT_OK(dataset->ReadTensor(0, 0, std::span(out).subspan(1)));
  EXPECT_EQ(ValuesOf<int64_t>(std::span(out).subspan(1)), Sample(*dataset, 0, 0));
}

TEST_F(TokensTest, WiderTokensAreNotTakenForUint16) {
  std::vector<uint32_t> ids(300);
  for (uint32_t i = 0; i < ids.size(); ++i) ids[i] = (i * 7919) % 128256;
  dir_.Write("wide.bin", RawBytes(ids));
  dir_.Write("int64.bin", RawBytes(std::vector<uint64_t>(ids.begin(), ids.end())));
  for (const char* name : {"wide.bin", "int64.bin"})
    EXPECT_THAT(Open(name, 8), StatusIs(Code::kInvalidArgument, HasSubstr("set token_dtype to uint32")));
  EXPECT_OK(Open("wide.bin", 8, 0, DType::kUint16));
  std::vector<int32_t> padded(ids.begin(), ids.end());
  padded[7] = -1;
  dir_.Write("padded32.bin", RawBytes(padded));
  dir_.Write("padded64.bin", RawBytes(std::vector<int64_t>(padded.begin(), padded.end())));
  for (const char* name : {"padded32.bin", "padded64.bin"})
    EXPECT_THAT(Open(name, 8), StatusIs(Code::kInvalidArgument, HasSubstr("(or 65535, as of -1)")));
  EXPECT_THAT(Open("padded64.bin", 8, 0, DType::kUint32),
              StatusIs(Code::kInvalidArgument, HasSubstr("suggests 64-bit integers")));
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("wide.bin", 8, 0, DType::kUint32));
  ExpectSamples(*dataset, ids, 8, 8);
}

TEST_F(TokensTest, OtherIntegersAreNotTakenForUint32) {
  std::vector<uint32_t> ids(300);
  for (uint32_t i = 0; i < ids.size(); ++i) ids[i] = (i * 7919) % 50257;
  dir_.Write("uint16.bin", RawBytes(std::vector<uint16_t>(ids.begin(), ids.end())));
  std::vector<uint32_t> swapped = ids;
  for (uint32_t& id : swapped) id = __builtin_bswap32(id);
  dir_.Write("big_endian.bin", RawBytes(swapped));
  EXPECT_THAT(Open("big_endian.bin", 8),
              StatusIs(Code::kInvalidArgument, HasSubstr("halves of big-endian integers")));
  for (const char* name : {"uint16.bin", "big_endian.bin"})
    EXPECT_THAT(
        Open(name, 8, 0, DType::kUint32),
        StatusIs(Code::kInvalidArgument, HasSubstr("which is no tokenizer's id; if its integers are")));
  EXPECT_OK(Open("uint16.bin", 8));
  std::vector<uint16_t> characters(300);
  for (uint16_t i = 0; i < characters.size(); ++i) characters[i] = i % 65;
  dir_.Write("characters.bin", RawBytes(characters));
  EXPECT_THAT(Open("characters.bin", 8, 0, DType::kUint32),
              StatusIs(Code::kInvalidArgument, HasSubstr("if its integers are uint16")));
  EXPECT_OK(Open("characters.bin", 8));
  ids.back() = (1 << 24) - 1;
  dir_.Write("large.bin", RawBytes(ids));
  EXPECT_OK(Open("large.bin", 8, 0, DType::kUint32));
}

TEST_F(TokensTest, SmallIdsOf64BitsAreNotTakenForNarrowerOnes) {
  std::vector<uint64_t> ids(300);
  for (uint64_t i = 0; i < ids.size(); ++i) ids[i] = i % 5;  // as of DNA
  dir_.Write("int32.bin", RawBytes(std::vector<uint32_t>(ids.begin(), ids.end())));
  dir_.Write("int64.bin", RawBytes(ids));
  for (const char* name : {"int32.bin", "int64.bin"})
    EXPECT_THAT(Open(name, 8), StatusIs(Code::kInvalidArgument, HasSubstr("set token_dtype to uint32")));
  EXPECT_OK(Open("int32.bin", 8, 0, DType::kUint32));
  EXPECT_THAT(Open("int64.bin", 8, 0, DType::kUint32),
              StatusIs(Code::kInvalidArgument, HasSubstr("suggests 64-bit integers")));
  dir_.Write("zeros.bin", RawBytes(std::vector<uint16_t>(300)));
  EXPECT_OK(Open("zeros.bin", 8));
}

TEST_F(TokensTest, OtherContentsAreNotTakenForIds) {
  std::string text;
  while (text.size() < 5001) text += "Once upon a time, in K\xc3\xb6ln.\r\n";
  dir_.Write("text.bin", text.substr(0, 5000));
  dir_.Write("wide.bin", text.substr(0, 5000));
  dir_.Write("pointer.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:0123456\nsize 12345\n");
  const std::string other = RawBytes(Stream<uint16_t>(300));
  dir_.Write("gzip.bin", "\x1f\x8b\x08" + other + "x");
  dir_.Write("zstd.bin", "\x28\xb5\x2f\xfd" + other);
  dir_.Write("bzip2.bin", "BZh11AY&SY" + other);
  std::string parts;
  while (parts.size() < 5000) parts += "Once upon a time, in K\xc3\xb6ln.\x1e";
  dir_.Write("parts.bin", parts.substr(0, 5000));
  dir_.Write("xz.bin", "\xfd\x37zXZ" + other + "x");
  dir_.Write("zip.bin", "PK\x03\x04" + other);
  dir_.Write("parquet.bin", "PAR1" + other);
  dir_.Write("arrow.bin", "ARROW1" + other);
  dir_.Write("hdf5.bin", "\x89HDF\r\n\x1a\n" + other);
  dir_.Write("stream.bin", std::string("\xff\xff\xff\xff\x80\2\0\0\x10\0\0\0", 12) + other);
  dir_.Write("safetensors.bin", std::string("X\0\0\0\0\0\0\0{\"", 10) + other);
  dir_.Write("litgpt.bin", "LITPKDS" + other + "x");
  std::u16string wide_text;
  while (wide_text.size() < 100) wide_text += u"\ufeffOnce upon a time, in K\u00f6ln \U0001f600.\r\n";
  dir_.Write("utf16.bin", RawBytes(std::vector<uint16_t>(wide_text.begin(), wide_text.end())));
  for (char16_t& unit : wide_text) unit = __builtin_bswap16(unit);
  dir_.Write("utf16be.bin", RawBytes(std::vector<uint16_t>(wide_text.begin(), wide_text.end())));
  std::string latin;
  while (latin.size() < 2000) latin += "Es war einmal in K\xf6ln.\r\n";
  dir_.Write("latin1.bin", latin);
  const auto is = [](const char* what) { return StatusIs(Code::kInvalidArgument, HasSubstr(what)); };
  EXPECT_THAT(Open("text.bin", 8), is("it is text, not token ids; save the ids of your tokenizer"));
  EXPECT_THAT(Open("wide.bin", 8, 0, DType::kUint32), is("it is text, not token ids"));
  EXPECT_THAT(Open("parts.bin", 8), is("it is text, not token ids"));
  EXPECT_THAT(Open("pointer.bin", 8), is("git lfs pull"));
  EXPECT_THAT(Open("gzip.bin", 8), is("compressed by gzip"));
  EXPECT_THAT(Open("zstd.bin", 8), is("compressed by zstd"));
  EXPECT_THAT(Open("bzip2.bin", 8), is("compressed by bzip2"));
  EXPECT_THAT(Open("xz.bin", 8), is("compressed by xz"));
  EXPECT_THAT(Open("zip.bin", 8), is("a zip archive"));
  for (const char* start : {"\x80\2\x8a\n", "\x80\2]q", "\x80\3]q", "\x80\2}q", "\x80\3}q", "\x80\2c",
                            "\x80\2(", "\x80\3(", "\x80\3c", "\x80\4\x95", "\x80\5\x95"}) {
    dir_.Write("pickle.bin", start + other);
    EXPECT_THAT(Open("pickle.bin", 8), is("it is a pickle")) << start;
  }
  EXPECT_THAT(Open("parquet.bin", 8), is("a Parquet file"));
  EXPECT_THAT(Open("arrow.bin", 8), is("an Arrow file"));
  EXPECT_THAT(Open("hdf5.bin", 8), is("an HDF5 file"));
  EXPECT_THAT(Open("stream.bin", 8), is("an Arrow stream"));
  EXPECT_THAT(Open("safetensors.bin", 8), is("a file of safetensors"));
  EXPECT_THAT(Open("litgpt.bin", 8), is("a packed dataset of lit-gpt"));
  for (const char* name : {"utf16.bin", "utf16be.bin", "latin1.bin"})
    EXPECT_THAT(Open(name, 8), is("it is text")) << name;
  std::vector<uint16_t> marked = Stream<uint16_t>(300);
  marked.front() = 0xfeff;  // an id
  dir_.Write("marked.bin", RawBytes(marked));
  EXPECT_OK(Open("marked.bin", 8));
  for (size_t shift = 0; shift < 4; ++shift) {  // what is looked at ends within a character, mostly
    std::string smiles(shift, '\f');
    while (smiles.size() < 5000) smiles += "\xf0\x9f\x98\x80";
    const std::string name = "smiles" + std::to_string(shift) + ".bin";
    dir_.Write(name, smiles);
    EXPECT_THAT(Open(name, 8), is("it is text")) << shift;
  }
  // Numbers that are text as well, and too few to tell.
  dir_.Write("short.bin", "ids below 64 bytes");
  EXPECT_OK(Open("short.bin", 8));
  dir_.Write("bytes.bin", RawBytes(std::vector<uint16_t>(300, 'a')));
  EXPECT_OK(Open("bytes.bin", 8));
}

TEST_F(TokensTest, TheHeaderOfLlmcIsNoTokens) {
  std::vector<uint32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 100;
  const std::vector<uint16_t> tokens = Stream<uint16_t>(100);
  dir_.Write("gpt2.bin", RawBytes(header) + RawBytes(tokens));
  ASSERT_OK_AND_ASSIGN(const auto gpt2, Open("gpt2.bin", 8));
  ExpectSamples(*gpt2, tokens, 8, 8);
  EXPECT_THAT(Open("gpt2.bin", 8, 0, DType::kUint32),
              StatusIs(Code::kInvalidArgument, HasSubstr("but its header says uint16")));
  dir_.Write("cut.bin", RawBytes(header) + RawBytes(Stream<uint16_t>(99)));
  EXPECT_THAT(Open("cut.bin", 8),
              StatusIs(Code::kDataLoss, HasSubstr("100 tokens of uint16 follow, but 198 bytes do")));
  header[0] = 20240801;
  header[1] = 7;
  const std::vector<uint32_t> wide = Stream<uint32_t>(100);
  dir_.Write("llama3.bin", RawBytes(header) + RawBytes(wide));
  ASSERT_OK_AND_ASSIGN(const auto llama3, Open("llama3.bin", 8));
  ExpectSamples(*llama3, wide, 8, 8);
  dir_.Write("short.bin", RawBytes(header).substr(0, 100));
  EXPECT_THAT(Open("short.bin", 8), StatusIs(Code::kDataLoss, HasSubstr("less than a header")));
  header[0] = 20240522;  // of HellaSwag and MMLU
  dir_.Write("evaluation.bin", RawBytes(header) + RawBytes(tokens));
  EXPECT_THAT(Open("evaluation.bin", 8), StatusIs(Code::kInvalidArgument, HasSubstr("evaluation file")));
}

TEST_F(TokensTest, ANpyFileTellsItsOwnType) {
  dir_.Write("t.npy", NpyHeaderBytes("<u4", "(5,)", false) + RawBytes<uint32_t>({1, 2, 70000, 4, 5}));
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("t.npy", 2));
  EXPECT_EQ(dataset->info().samples, 2U);
  EXPECT_EQ(Sample(*dataset, 0, 1), (std::vector<int64_t>{2, 70000}));
  EXPECT_EQ(Sample(*dataset, 1, 1), (std::vector<int64_t>{4, 5}));
}

// numpy.save to an open file adds no extension.
TEST_F(TokensTest, ANpyFileOfAnotherNameIsOneAsWell) {
  const std::string file = NpyHeaderBytes("<u2", "(5,)", false) + RawBytes<uint16_t>({1, 2, 60000, 4, 5});
  for (const char* const name : {"t.bin", "t.NPY"}) {
    dir_.Write(name, file);
    ASSERT_OK_AND_ASSIGN(const auto dataset, Open(name, 2));
    EXPECT_EQ(dataset->info().samples, 2U);
    EXPECT_EQ(Sample(*dataset, 0, 0), (std::vector<int64_t>{1, 2}));
    EXPECT_THAT(Open(name, 2, 0, DType::kUint32),
                StatusIs(Code::kInvalidArgument, HasSubstr("leave token_dtype out")));
  }
  dir_.Write("b.bin", NpyHeaderBytes("<i8", "(2,)", false) + std::string(16, 'x'));
  EXPECT_THAT(Open("b.bin", 1), StatusIs(Code::kInvalidArgument, HasSubstr("1-D array of int64")));
}

TEST_F(TokensTest, RefusesArraysThatAreNoStream) {
  dir_.Write("a.npy", NpyHeaderBytes("<u2", "(2, 2)", false) + std::string(8, 'x'));
  dir_.Write("b.npy", NpyHeaderBytes("<i8", "(2,)", false) + std::string(16, 'x'));
  dir_.Write("c.npy", NpyHeaderBytes(">u2", "(2,)", false) + std::string(4, 'x'));
  EXPECT_THAT(Open("a.npy", 1), StatusIs(Code::kInvalidArgument,
                                         AllOf(HasSubstr(Path("a.npy")), HasSubstr("2-D array of uint16"))));
  EXPECT_THAT(Open("b.npy", 1),
              StatusIs(Code::kInvalidArgument, HasSubstr("1-D array of int64; tokens need")));
  EXPECT_THAT(Open("c.npy", 1), StatusIs(Code::kInvalidArgument, HasSubstr("big-endian uint16")));
}

TEST_F(TokensTest, RefusesFilesTooShortForOneSample) {
  dir_.Write("t.bin", RawBytes(Stream<uint16_t>(8)));
  dir_.Write("empty.bin", "");
  EXPECT_OK(Open("t.bin", 7));
  EXPECT_THAT(Open("t.bin", 8),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path("t.bin")), HasSubstr("holds 8 tokens"),
                                                     HasSubstr("sequence_length 8 needs 9"))));
  EXPECT_THAT(Open("t.bin", 0xffffffff), StatusIs(Code::kInvalidArgument, HasSubstr("needs 4294967296")));
  EXPECT_THAT(Open("empty.bin", 1), StatusIs(Code::kInvalidArgument, HasSubstr("holds 0 tokens")));
}

TEST_F(TokensTest, RefusesATokenDtypeThatTheHeaderContradicts) {
  dir_.Write("t.npy", NpyHeaderBytes("<u4", "(20,)", false) + RawBytes(Stream<uint32_t>(20)));
  EXPECT_OK(Open("t.npy", 4));
  EXPECT_OK(Open("t.npy", 4, 0, DType::kUint32));
  EXPECT_THAT(
      Open("t.npy", 4, 0, DType::kUint16),
      StatusIs(Code::kInvalidArgument, HasSubstr("token_dtype says uint16, but its header says uint32")));
}

TEST_F(TokensTest, RefusesWrongSpecs) {
  dir_.Write("t.bin", std::string(7, 'x'));
  EXPECT_THAT(Open("t.bin", 0),
              StatusIs(Code::kInvalidArgument, HasSubstr("sequence_length: must be at least 1")));
  EXPECT_THAT(Open("t.bin", 1),
              StatusIs(Code::kDataLoss, AllOf(HasSubstr(Path("t.bin")),
                                              HasSubstr("7 bytes are not a whole number of uint16"))));
  EXPECT_THAT(Open("t.bin", 1, 0, DType::kInt64),
              StatusIs(Code::kInvalidArgument, HasSubstr("token_dtype: is neither uint16 nor uint32")));
  EXPECT_THAT(Open("gone.bin", 1), StatusIs(Code::kNotFound, HasSubstr(Path("gone.bin"))));
  EXPECT_THAT(Open("", 1),
              StatusIs(Code::kInvalidArgument, HasSubstr("is a directory, but a token stream is one file")));
}

TEST_F(TokensTest, AFileCutAfterwardsIsDataLoss) {
  dir_.Write("t.bin", RawBytes(Stream<uint16_t>(100)));
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("t.bin", 9));
  fs::resize_file(Path("t.bin"), 100);
  std::vector<std::byte> out(72);
  EXPECT_OK(dataset->ReadTensor(0, 0, out));
  EXPECT_THAT(dataset->ReadTensor(10, 0, out),
              StatusIs(Code::kDataLoss, AllOf(HasSubstr(Path("t.bin")), HasSubstr("offset 180"))));
}

TEST_F(TokensTest, SparseFilesOfManyTebibytesRead) {
  dir_.Write("t.bin", "");
  std::error_code error;
  fs::resize_file(Path("t.bin"), uint64_t{1} << 42, error);
  if (error) GTEST_SKIP() << "this file system has no files of 4 TiB: " << error.message();
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("t.bin", 1, 1));
  EXPECT_EQ(dataset->info().samples, (uint64_t{1} << 41) - 1);
  EXPECT_EQ(Sample(*dataset, dataset->info().samples - 1, 1), (std::vector<int64_t>{0}));
}

TEST_F(TokensTest, FingerprintFollowsLengthAndStride) {
  dir_.Write("t.bin", RawBytes(Stream<uint16_t>(100)));
  const auto fingerprint = [&](uint32_t length, uint32_t stride) {
    const auto dataset = Open("t.bin", length, stride);
    EXPECT_OK(dataset);
    return (*dataset)->info().fingerprint;
  };
  EXPECT_EQ(fingerprint(9, 0), fingerprint(9, 9));
  EXPECT_NE(fingerprint(9, 0), fingerprint(9, 8));
  EXPECT_NE(fingerprint(9, 9), fingerprint(8, 9));
}

}  // namespace
}  // namespace pinfeed
