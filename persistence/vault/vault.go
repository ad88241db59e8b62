package vault

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"

	"agentsvc/schemas/id"
)

// Layout of a sealed value. The key name and the version are public and bound to both
// encryptions.
const (
	version   = 1
	nameSize  = 4
	nonceSize = 12
	tagSize   = 16
	keySize   = 32

	wrapAt    = 1 + nameSize
	wrappedAt = wrapAt + nonceSize
	bodyAt    = wrappedAt + keySize + tagSize
	dataAt    = bodyAt + nonceSize

	// Overhead is what sealing adds to a value's size.
	Overhead = dataAt + tagSize
)

// ErrOpen is returned for a value that does not open, because of another place, another
// master key, or damage. It does not tell which.
var ErrOpen = errors.New("the sealed value does not open")

// Sealed is an encrypted value in the form of a bytea column.
type Sealed []byte

// String returns "[sealed]".
func (Sealed) String() string { return "[sealed]" }

// AAD is the place that a value belongs to.
type AAD struct {
	Tenant id.TenantID
	Table  string
	Row    string // the row's key within the tenant: an id's text, or several parts joined by /
	Column string
}

// append encodes the place unambiguously: parts of varying length are preceded by their
// length. purpose separates the two encryptions of a value.
func (a AAD) append(b []byte, purpose byte) []byte {
	b = append(b, version, purpose)
	b = append(b, a.Tenant.UUID[:]...)
	for _, part := range []string{a.Table, a.Row, a.Column} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}

const (
	forKey  = 'k'
	forData = 'd'
)

// Vault seals under one master key and opens under several. It is safe for
// concurrent use.
type Vault struct {
	masters []master // the current one first
}

type master struct {
	name [nameSize]byte // of the key, to find it among several
	aead cipher.AEAD
	root []byte // from which other keys are derived (HKDF-Extract)
}

// New returns a vault that seals under current and opens values sealed under current or
// previous keys.
func New(current Secret32, previous ...Secret32) *Vault {
	v := &Vault{}
	for _, key := range append([]Secret32{current}, previous...) {
		sum := sha256.Sum256(append([]byte("svc master key\x00"), key.key[:]...))
		v.masters = append(v.masters, master{[nameSize]byte(sum[:]), newGCM(key.key[:]), newRoot(key.key[:])})
	}
	return v
}

// Derive returns keys for one purpose, one per master key: first the one to sign with, then
// those that verify signatures made under previous master keys. They are the same on every
// node. Keys of different purposes reveal nothing about each other, nor about the master key
// (HKDF-SHA256, RFC 5869).
func (v *Vault) Derive(purpose string) []Secret32 {
	keys := make([]Secret32, len(v.masters))
	for i, m := range v.masters {
		key, err := hkdf.Expand(sha256.New, m.root, purpose, len(keys[i].key))
		if err != nil {
			panic(err) // 32 bytes are a valid length
		}
		copy(keys[i].key[:], key)
	}
	return keys
}

func newRoot(key []byte) []byte {
	root, err := hkdf.Extract(sha256.New, key, []byte("svc derived keys"))
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	return root
}

// Names returns the names of the master keys, the sealing one first. They reveal nothing
// about the keys.
func (v *Vault) Names() []string {
	names := make([]string, len(v.masters))
	for i, m := range v.masters {
		names[i] = hex.EncodeToString(m.name[:])
	}
	return names
}

func newGCM(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // the block has 16 bytes
	}
	return aead
}

// Seal encrypts plain for the place aad.
func (v *Vault) Seal(aad AAD, plain []byte) (Sealed, error) {
	m := &v.masters[0]
	// One draw serves both nonces and the data key; the wrapped form of the data key then
	// takes its place in out.
	out := make([]byte, dataAt, Overhead+len(plain))
	rand.Read(out[wrapAt:])
	out[0] = version
	copy(out[1:], m.name[:])
	var key [keySize]byte
	defer clear(key[:])
	copy(key[:], out[wrappedAt:])

	var place [256]byte
	m.aead.Seal(out[wrappedAt:wrappedAt], out[wrapAt:wrappedAt], key[:], aad.append(place[:0], forKey))
	return newGCM(key[:]).Seal(out, out[bodyAt:dataAt], plain, aad.append(place[:0], forData)), nil
}

// Open decrypts a value that was sealed for the place aad.
func (v *Vault) Open(aad AAD, s Sealed) ([]byte, error) {
	var key [keySize]byte
	defer clear(key[:])
	if _, err := v.unwrap(aad, s, &key); err != nil {
		return nil, err
	}
	var place [256]byte
	plain, err := newGCM(key[:]).Open(nil, s[bodyAt:dataAt], s[dataAt:], aad.append(place[:0], forData))
	if err != nil {
		return nil, ErrOpen
	}
	if plain == nil {
		plain = []byte{} // an empty value is not a missing one
	}
	return plain, nil
}

// Rewrap returns s with its data key wrapped by the current master key. If it already is,
// changed is false and s is returned as it is.
func (v *Vault) Rewrap(aad AAD, s Sealed) (rewrapped Sealed, changed bool, err error) {
	var key [keySize]byte
	defer clear(key[:])
	used, err := v.unwrap(aad, s, &key)
	if err != nil {
		return nil, false, err
	}
	m := &v.masters[0]
	if used == m {
		return s, false, nil
	}
	out := slices.Clone(s)
	copy(out[1:], m.name[:])
	rand.Read(out[wrapAt:wrappedAt])
	var place [256]byte
	m.aead.Seal(out[wrappedAt:wrappedAt], out[wrapAt:wrappedAt], key[:], aad.append(place[:0], forKey))
	return out, true, nil
}

// unwrap finds the master key of s and decrypts the data key with it.
func (v *Vault) unwrap(aad AAD, s Sealed, key *[keySize]byte) (*master, error) {
	if len(s) < Overhead || s[0] != version {
		return nil, ErrOpen
	}
	var place [256]byte
	bound := aad.append(place[:0], forKey)
	for i := range v.masters {
		m := &v.masters[i]
		if [nameSize]byte(s[1:wrapAt]) != m.name {
			continue
		}
		if _, err := m.aead.Open(key[:0], s[wrapAt:wrappedAt], s[wrappedAt:bodyAt], bound); err == nil {
			return m, nil
		}
	}
	return nil, ErrOpen
}
