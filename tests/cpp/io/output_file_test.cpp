#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torchvq/io/error.h>
#include <torchvq/io/output_file.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "expect_throw.h"
#include "io/temp_dir.h"

namespace torchvq::io::output_file_test {
namespace {

namespace fs = std::filesystem;
using torchvq::testing::expect_throw_with;
using torchvq::testing::read_bytes;
using torchvq::testing::TempDir;
using torchvq::testing::write_bytes;

unsigned mode_of(const std::string& path) {
  struct stat status{};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

TEST(OutputFileTest, AppearsOnCommit) {
  const TempDir dir;
  OutputFile file(dir / "x");
  file.reserve(1000);
  file.write("hel", 3);
  file.write("lo", 2);
  EXPECT_FALSE(fs::exists(dir / "x"));
  file.commit();
  EXPECT_EQ(read_bytes(dir / "x"), "hello");
  EXPECT_EQ(dir.files(), 1u);
}

TEST(OutputFileTest, WithoutCommitNothingChanges) {
  const TempDir dir;
  write_bytes(dir / "x", "old");
  {
    OutputFile file(dir / "x");
    file.write("new", 3);
    EXPECT_EQ(dir.files(), 2u);
  }
  EXPECT_EQ(read_bytes(dir / "x"), "old");
  EXPECT_EQ(dir.files(), 1u);
}

TEST(OutputFileTest, KeepsPermissionsAndFollowsLinks) {
  const TempDir dir;
  write_bytes(dir / "real", "old");
  fs::permissions(dir / "real", fs::perms(0640));
  fs::create_symlink("real", dir / "link");
  OutputFile file(dir / "link");
  file.write("new", 3);
  file.commit();
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(read_bytes(dir / "real"), "new");
  EXPECT_EQ(mode_of(dir / "real"), 0640u);
}

TEST(OutputFileTest, FollowsALinkToAFileThatIsNotThereYet) {
  const TempDir dir;
  fs::create_directory(dir / "place");
  fs::create_symlink("place/x", dir / "second");
  fs::create_symlink("second", dir / "first");
  OutputFile file(dir / "first");
  file.write("new", 3);
  file.commit();
  EXPECT_TRUE(fs::is_symlink(dir / "first"));
  EXPECT_EQ(read_bytes(dir / "place/x"), "new");
  fs::create_symlink("circle", dir / "circle");
  expect_throw_with<IoError>([&] { OutputFile circle(dir / "circle"); },
                             "circle: cannot write: Too many levels of symbolic links");
}

TEST(OutputFileTest, NewFilesObeyTheUmask) {
  const TempDir dir;
  const auto before = ::umask(027);
  OutputFile file(dir / "x");
  ::umask(before);
  file.commit();
  EXPECT_EQ(mode_of(dir / "x"), 0640u);
}

TEST(OutputFileTest, AFullDeviceIsAnError) {
  OutputFile file("/dev/full");
  expect_throw_with<IoError>([&] { file.write("x", 1); },
                             "/dev/full: cannot write: No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(OutputFileTest, DevicesAreWrittenNotReplaced) {
  OutputFile file("/dev/null");
  file.write("x", 1);
  file.commit();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(OutputFileTest, PlacesThatCannotBeWrittenAreErrors) {
  const TempDir dir;
  expect_throw_with<IoError>([&] { OutputFile file(dir / "absent/x"); },
                             "absent/x: cannot write: No such file");
  expect_throw_with<IoError>([&] { OutputFile file(dir / ""); }, "cannot write: Is a directory");
  expect_throw_with<IoError>([&] { OutputFile file(dir / std::string(300, 'x') + "/x"); },
                             "File name too long");
}

// A signal ends the child while a file is half written; only its handler can remove the file.
TEST(OutputFileTest, ASignalHandlerCanRemoveWhatIsUnfinished) {
  const TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGTERM, [](int) {
      remove_unfinished_files();
      ::_exit(3);
    });
    OutputFile finished(dir / "finished");
    finished.commit();
    OutputFile file(dir / "x");
    file.write("x", 1);
    std::raise(SIGTERM);
    ::_exit(4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_EQ(dir.files(), 1u);
  EXPECT_TRUE(fs::exists(dir / "finished"));
}

}  // namespace
}  // namespace torchvq::io::output_file_test
