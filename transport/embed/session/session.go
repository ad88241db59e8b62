package session

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash"
	"sync"
	"time"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
)

const (
	tokenPrefix   = "svc_es_"
	visitorPrefix = "svc_vi_"

	// version is the first byte of a payload.
	version = 1

	idLen      = len(id.UUID{})
	expiresAt  = 1 + 4*idLen + 8
	originAt   = expiresAt + 8 // the rest of a token's payload is its origin
	visitorLen = 1 + idLen     // of a visitor value's payload

	// sumLen is the length of a MAC's text.
	sumLen = (sha256.Size*8 + 5) / 6
)

// Purposes of the derived keys. Changing one invalidates everything that was signed for it.
const (
	tokenPurpose   = "embed session token"
	visitorPurpose = "embed visitor value"
)

// ErrInvalid is returned for a malformed, foreign or expired token, without telling which
// (service.md, Errors: EMBED_UNAUTHORIZED).
var ErrInvalid = errors.New("not a valid session token")

// Claims are the contents of a session token.
type Claims struct {
	Tenant     id.TenantID
	Key        id.EmbedKeyID
	Generation int64 // generation of the key when the session began
	Visitor    id.VisitorID
	EndUser    id.EndUserID // zero for an anonymous visitor
	Origin     string       // normalised; the session is bound to it
	Expires    time.Time    // in UTC; fractions of a second are dropped
}

// Signer makes and reads session tokens and visitor values. It is safe for concurrent
// use.
type Signer struct{ tokens, visitors ring }

// NewSigner returns a Signer with keys derived from the vault's master keys.
func NewSigner(v *vault.Vault) *Signer {
	return &Signer{newRing(v.Derive(tokenPurpose)), newRing(v.Derive(visitorPurpose))}
}

// Mint returns a session token.
func (s *Signer) Mint(c Claims) string {
	b := make([]byte, 0, originAt+len(c.Origin))
	b = append(b, version)
	for _, u := range []id.UUID{c.Tenant.UUID, c.Key.UUID, c.Visitor.UUID, c.EndUser.UUID} {
		b = append(b, u[:]...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(c.Generation))
	b = binary.BigEndian.AppendUint64(b, uint64(c.Expires.Unix()))
	b = append(b, c.Origin...)
	return s.tokens.sign(nil, tokenPrefix, b)
}

// Open reads a session token. It accepts exactly the tokens that Mint made and that have not
// expired at now; anything else is ErrInvalid.
func (s *Signer) Open(token string, now time.Time) (Claims, error) {
	text, ok := s.tokens.open(nil, tokenPrefix, token)
	if !ok {
		return Claims{}, ErrInvalid
	}
	// Most payloads fit, and then only the origin is allocated.
	var stack, decoded [256]byte
	b, err := base64.RawURLEncoding.AppendDecode(decoded[:0], append(stack[:0], text...))
	if err != nil || len(b) < originAt || b[0] != version {
		return Claims{}, ErrInvalid
	}
	var c Claims
	for i, u := range []*id.UUID{&c.Tenant.UUID, &c.Key.UUID, &c.Visitor.UUID, &c.EndUser.UUID} {
		copy(u[:], b[1+i*idLen:])
	}
	c.Generation = int64(binary.BigEndian.Uint64(b[expiresAt-8:]))
	c.Expires = time.Unix(int64(binary.BigEndian.Uint64(b[expiresAt:])), 0).UTC()
	c.Origin = string(b[originAt:])
	if !now.Before(c.Expires) {
		return Claims{}, ErrInvalid
	}
	return c, nil
}

// MintVisitor returns the visitor value of a visitor of an embed key.
func (s *Signer) MintVisitor(t id.TenantID, k id.EmbedKeyID, v id.VisitorID) string {
	return s.visitors.sign(placeOf(t, k), visitorPrefix, append([]byte{version}, v.UUID[:]...))
}

// OpenVisitor reads a visitor value. It accepts exactly the values that MintVisitor made for
// this tenant and embed key.
func (s *Signer) OpenVisitor(value string, t id.TenantID, k id.EmbedKeyID) (id.VisitorID, bool) {
	text, ok := s.visitors.open(placeOf(t, k), visitorPrefix, value)
	if !ok {
		return id.VisitorID{}, false
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) != visitorLen || b[0] != version {
		return id.VisitorID{}, false
	}
	return id.VisitorID{UUID: id.UUID(b[1:])}, true
}

// placeOf returns what a visitor value is bound to besides its text; its length is fixed.
func placeOf(t id.TenantID, k id.EmbedKeyID) []byte {
	return append(t.UUID[:], k.UUID[:]...)
}

// ring holds the keys of one purpose, the signing key first.
type ring []*sync.Pool // of *mac

// mac is pooled, since every request needs one.
type mac struct {
	hash.Hash
	buf []byte
}

func newRing(keys []vault.Secret32) ring {
	r := make(ring, len(keys))
	for i, k := range keys {
		key := k.Reveal()
		r[i] = &sync.Pool{New: func() any { return &mac{Hash: hmac.New(sha256.New, key[:])} }}
	}
	return r
}

// sign returns prefix, payload and MAC as one text.
func (r ring) sign(place []byte, prefix string, payload []byte) string {
	b := make([]byte, 0, len(prefix)+base64.RawURLEncoding.EncodedLen(len(payload))+1+sumLen)
	b = base64.RawURLEncoding.AppendEncode(append(b, prefix...), payload)
	sum := sumOf(r[0], place, string(b))
	return string(append(append(b, '.'), sum[:]...))
}

// open returns the text of the payload if one of the keys signed it.
func (r ring) open(place []byte, prefix, value string) (payload string, ok bool) {
	dot := len(value) - 1 - sumLen
	if dot < len(prefix) || value[:len(prefix)] != prefix || value[dot] != '.' {
		return "", false
	}
	var got [sumLen]byte
	copy(got[:], value[dot+1:])
	for _, key := range r {
		// Comparing texts, not decoded bytes, accepts only one spelling of a MAC.
		want := sumOf(key, place, value[:dot])
		if subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			return value[len(prefix):dot], true
		}
	}
	return "", false
}

// sumOf returns the text of the MAC of place and text.
func sumOf(key *sync.Pool, place []byte, text string) (out [sumLen]byte) {
	m := key.Get().(*mac)
	defer key.Put(m)
	m.Reset()
	m.buf = append(append(m.buf[:0], place...), text...)
	m.Write(m.buf)
	base64.RawURLEncoding.Encode(out[:], m.Sum(m.buf[:0]))
	return out
}
