package vault

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"
)

func hmac256(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// RFC 5869 by hand: one block of output is T(1) = HMAC(PRK, info | 0x01).
func TestADerivedKeyIsHKDFOfItsMasterKeyAndPurpose(t *testing.T) {
	master := testKey(1)
	root := hmac256([]byte("svc derived keys"), master.key[:])
	for _, purpose := range []string{"", "a", "embed session token"} {
		got := New(master).Derive(purpose)
		if len(got) != 1 || got[0].Reveal() != [32]byte(hmac256(root, []byte(purpose), []byte{1})) {
			t.Errorf("%q: another key", purpose)
		}
	}
}

// Signed values outlive a release: visitors keep them for years.
func TestADerivedKeyNeverChanges(t *testing.T) {
	key := New(testKey(1)).Derive("a purpose")[0].Reveal()
	if got, want := hex.EncodeToString(key[:]), "42decc304dadde44fb550c3cdb40c757b4c12ad1d3241209347f57abe4dff8eb"; got != want {
		t.Errorf("it is %s, was %s", got, want)
	}
}

func TestDerivedKeysComeInTheOrderOfTheMasterKeys(t *testing.T) {
	one, two, three := testKey(1), testKey(2), testKey(3)
	got := New(three, two, one).Derive("p")
	want := []Secret32{New(three).Derive("p")[0], New(two).Derive("p")[0], New(one).Derive("p")[0]}
	if !slices.Equal(got, want) {
		t.Error("they do not")
	}
}

func TestDerivedKeysDiffer(t *testing.T) {
	seen := map[[32]byte]string{}
	for _, master := range []Secret32{testKey(1), testKey(2)} {
		seen[master.Reveal()] = "a master key"
	}
	for name, master := range map[string]Secret32{"one": testKey(1), "two": testKey(2)} {
		for _, purpose := range []string{"", "a", "b", "ab", "a\x00"} {
			key := New(master).Derive(purpose)[0].Reveal()
			if of, twice := seen[key]; twice {
				t.Errorf("the key of %s for %q is that of %s", name, purpose, of)
			}
			seen[key] = name + " for " + purpose
		}
	}
}
