// The store for the rendezvous of processes: only processes that know a
// secret can write its values.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace torchvq::cli {

/// Prepends to each value the keyed hash of its key and itself, and rejects values without it.
/// Values are not encrypted.
class SignedStore : public c10d::Store {
 public:
  SignedStore(c10::intrusive_ptr<c10d::Store> store, std::string secret);

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  /// Throws c10::DistError for a value that was not written with the secret.
  std::vector<uint8_t> get(const std::string& key) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  /// Throws c10::NotImplementedError: a counter that several processes add to cannot be signed.
  int64_t add(const std::string& key, int64_t value) override;
  bool hasExtendedApi() const override { return false; }
  const std::chrono::milliseconds& getTimeout() const noexcept override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string secret_;
};

}  // namespace torchvq::cli
