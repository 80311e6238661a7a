#include "signed_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "sha256.h"

namespace torchvq::cli {
namespace {

using Bytes = std::vector<uint8_t>;

Digest sign(const std::string& secret, const std::string& key, const uint8_t* value, size_t size) {
  // No key contains a zero byte, so no other key and value give the same message.
  auto message = key + '\0';
  message.append(reinterpret_cast<const char*>(value), size);
  return keyed_hash(secret, message);
}

}  // namespace

SignedStore::SignedStore(c10::intrusive_ptr<c10d::Store> store, std::string secret)
    : store_(std::move(store)), secret_(std::move(secret)) {}

c10::intrusive_ptr<c10d::Store> SignedStore::clone() {
  return c10::make_intrusive<SignedStore>(store_->clone(), secret_);
}

void SignedStore::set(const std::string& key, const Bytes& value) {
  const auto digest = sign(secret_, key, value.data(), value.size());
  Bytes whole(digest.begin(), digest.end());
  whole.insert(whole.end(), value.begin(), value.end());
  store_->set(key, whole);
}

Bytes SignedStore::get(const std::string& key) {
  const auto whole = store_->get(key);
  Digest found{};
  const auto size = std::min(whole.size(), found.size());
  std::copy_n(whole.begin(), size, found.begin());
  const bool ours =
      size == found.size() &&
      equal_digests(found, sign(secret_, key, whole.data() + size, whole.size() - size));
  if (!ours) {
    C10_THROW_ERROR(DistError,
                    "expected the same TORCHVQ_SECRET on all processes, but another one came "
                    "with a different one or none");
  }
  return {whole.begin() + static_cast<std::ptrdiff_t>(size), whole.end()};
}

bool SignedStore::deleteKey(const std::string& key) { return store_->deleteKey(key); }
bool SignedStore::check(const std::vector<std::string>& keys) { return store_->check(keys); }
int64_t SignedStore::getNumKeys() { return store_->getNumKeys(); }
void SignedStore::wait(const std::vector<std::string>& keys) { store_->wait(keys); }
void SignedStore::wait(const std::vector<std::string>& keys,
                       const std::chrono::milliseconds& timeout) {
  store_->wait(keys, timeout);
}

int64_t SignedStore::add(const std::string& key, int64_t /*value*/) {
  C10_THROW_ERROR(NotImplementedError,
                  "SignedStore: expected no call of add, but got one for " + key);
}

const std::chrono::milliseconds& SignedStore::getTimeout() const noexcept {
  return store_->getTimeout();
}

void SignedStore::setTimeout(const std::chrono::milliseconds& timeout) {
  store_->setTimeout(timeout);
}

}  // namespace torchvq::cli
