package session

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
)

func master(b byte) vault.Secret32 { return vault.NewSecret32([32]byte{b}) }

func uuid(b byte) id.UUID { return id.UUID{b, 0x80, 15: b} }

var (
	now    = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	signer = NewSigner(vault.New(master(1)))
	tenant = id.TenantID{UUID: uuid(1)}
	embed  = id.EmbedKeyID{UUID: uuid(2)}
	person = id.VisitorID{UUID: uuid(3)}
)

func claims() Claims {
	return Claims{Tenant: tenant, Key: embed, Generation: 7, Visitor: person, EndUser: id.EndUserID{UUID: uuid(4)},
		Origin: "https://shop.example:8443", Expires: now.Add(time.Hour)}
}

func TestATokenSaysWhatItWasMintedWith(t *testing.T) {
	for name, change := range map[string]func(*Claims){
		"an end user":                       func(*Claims) {},
		"an anonymous visitor":              func(c *Claims) { c.EndUser = id.EndUserID{} },
		"no origin":                         func(c *Claims) { c.Origin = "" },
		"an opaque origin":                  func(c *Claims) { c.Origin = "null" },
		"an origin longer than most":        func(c *Claims) { c.Origin = "https://" + strings.Repeat("a.", 400) + "example" },
		"an origin that is no ASCII":        func(c *Claims) { c.Origin = "https://ü.\x00\xff" },
		"the first generation":              func(c *Claims) { c.Generation = 0 },
		"a generation below zero":           func(c *Claims) { c.Generation = -1 },
		"the last generation":               func(c *Claims) { c.Generation = 1<<63 - 1 },
		"an end in a second":                func(c *Claims) { c.Expires = now.Add(time.Second) },
		"an end after a person's life time": func(c *Claims) { c.Expires = now.AddDate(200, 0, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			want := claims()
			change(&want)
			if got, err := signer.Open(signer.Mint(want), now); err != nil || got != want {
				t.Errorf("%+v, %v; minted with %+v", got, err, want)
			}
		})
	}
}

// EMBED_UNAUTHORIZED is "missing, malformed or expired".
func TestATokenEndsWhenItExpires(t *testing.T) {
	c := claims()
	c.Expires = now.Add(999 * time.Millisecond) // a fraction is dropped
	if _, err := signer.Open(signer.Mint(c), now.Add(-1)); err != nil {
		t.Errorf("a moment before: %v", err)
	}
	for _, late := range []time.Duration{0, 1, time.Second, time.Hour, 1000 * time.Hour} {
		if _, err := signer.Open(signer.Mint(c), now.Add(late)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s late: %v", late, err)
		}
	}
}

// Values stored in browsers outlive a release.
func TestTheFormsNeverChange(t *testing.T) {
	if got, want := signer.Mint(claims()), "svc_es_AQGAAAAAAAAAAAAAAAAAAAECgAAAAAAAAAAAAAAAAAACA4AAAAAAAAAAAAAAAAAAAwSAAAAAAAAAAAAAAAAAAAQAAAAAAAAABwAAAABrAmjAaHR0cHM6Ly9zaG9wLmV4YW1wbGU6ODQ0Mw.PDfAte0ka3MK7NG5VtoTBoiSX9wk4YpBwL-brpUyMwA"; got != want {
		t.Errorf("the token is\n%s, was\n%s", got, want)
	}
	if got, want := signer.MintVisitor(tenant, embed, person), "svc_vi_AQOAAAAAAAAAAAAAAAAAAAM.2jE2bP0CyJ_5zcc8xSTFuJD169VWXgWYB4eAbzP3obE"; got != want {
		t.Errorf("the visitor value is\n%s, was\n%s", got, want)
	}
}

func TestAVisitorValueIsThatOfOneVisitorOfOneKey(t *testing.T) {
	value := signer.MintVisitor(tenant, embed, person)
	if got, ok := signer.OpenVisitor(value, tenant, embed); !ok || got != person {
		t.Errorf("%v, %t", got, ok)
	}
	for name, open := range map[string]func() (id.VisitorID, bool){
		"another tenant": func() (id.VisitorID, bool) { return signer.OpenVisitor(value, id.TenantID{UUID: uuid(9)}, embed) },
		"another key":    func() (id.VisitorID, bool) { return signer.OpenVisitor(value, tenant, id.EmbedKeyID{UUID: uuid(9)}) },
		"tenant and key swapped": func() (id.VisitorID, bool) {
			return signer.OpenVisitor(value, id.TenantID(embed), id.EmbedKeyID(tenant))
		},
		"no tenant and no key":  func() (id.VisitorID, bool) { return signer.OpenVisitor(value, id.TenantID{}, id.EmbedKeyID{}) },
		"the visitor's bare id": func() (id.VisitorID, bool) { return signer.OpenVisitor(person.String(), tenant, embed) },
		"nothing":               func() (id.VisitorID, bool) { return signer.OpenVisitor("", tenant, embed) },
	} {
		if got, ok := open(); ok || got != (id.VisitorID{}) {
			t.Errorf("%s: %v, %t", name, got, ok)
		}
	}
}

// reader is one of the two values, and what reads it.
type reader struct {
	name, value string
	accepts     func(string) bool
}

func readers() []reader {
	return []reader{
		{"token", signer.Mint(claims()), func(s string) bool {
			c, err := signer.Open(s, now)
			if (err != nil) != (c == Claims{}) || err != nil && err != ErrInvalid {
				panic("neither claims nor ErrInvalid")
			}
			return err == nil
		}},
		{"visitor value", signer.MintVisitor(tenant, embed, person), func(s string) bool {
			v, ok := signer.OpenVisitor(s, tenant, embed)
			if ok != (v != id.VisitorID{}) {
				panic("neither a visitor nor none")
			}
			return ok
		}},
	}
}

func TestNothingButWhatWasMintedIsAccepted(t *testing.T) {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	for _, r := range readers() {
		t.Run(r.name, func(t *testing.T) {
			if !r.accepts(r.value) {
				t.Fatal("not even that")
			}
			refuse := func(how, s string) {
				t.Helper()
				if s == r.value {
					t.Fatalf("%s: the value is unchanged, the check is void", how)
				}
				if r.accepts(s) {
					t.Errorf("%s is accepted: %q", how, s)
				}
			}
			v := r.value
			dot := strings.LastIndexByte(v, '.')
			for i := range v {
				refuse("cut", v[:i])
				refuse("cut in front", v[i+1:])
				refuse("a byte less", v[:i]+v[i+1:])
				refuse("a bit changed", v[:i]+string(v[i]^1)+v[i+1:])
				for _, c := range "\x00 \n\r\t.=+/A\xff" {
					if byte(c) != v[i] {
						refuse("a byte changed", v[:i]+string(byte(c))+v[i+1:])
					}
					refuse("a byte more", v[:i]+string(byte(c))+v[i:])
				}
			}
			// The last character of a part has bits that no byte takes.
			for _, at := range []int{dot - 1, len(v) - 1} {
				for _, c := range alphabet {
					if byte(c) != v[at] {
						refuse("other trailing bits", v[:at]+string(c)+v[at+1:])
					}
				}
			}
			for how, s := range map[string]string{
				"padded":                 v + "=",
				"the payload padded":     v[:dot] + "=" + v[dot:],
				"twice":                  v + v,
				"a third part":           v + "." + v[dot+1:],
				"without a dot":          strings.Replace(v, ".", "", 1),
				"without its payload":    v[:7] + v[dot:],
				"without its MAC":        v[:dot],
				"an empty MAC":           v[:dot+1],
				"without its prefix":     v[7:],
				"its prefix in capitals": strings.ToUpper(v[:7]) + v[7:],
				"white space around it":  " " + v + " ",
				"a line break behind it": v + "\n",
				"a zero MAC":             v[:dot+1] + strings.Repeat("A", 43),
				"standard alphabet":      strings.NewReplacer("-", "+", "_", "/").Replace(v),
				"its parts in standard base64": v[:7] + base64.StdEncoding.EncodeToString([]byte(v[7:dot])) + "." +
					base64.StdEncoding.EncodeToString([]byte(v[dot+1:])),
				"an API key": "svc_1234567890123456789012_1234567890123456789012345678901234567890123_123456",
			} {
				refuse(how, s)
			}
		})
	}
}

// One is no other, neither as it is nor under the other one's prefix.
func TestATokenIsNoVisitorValue(t *testing.T) {
	r := readers()
	for i, from := range r {
		to := r[1-i]
		for _, s := range []string{from.value, to.value[:7] + from.value[7:]} {
			if to.accepts(s) {
				t.Errorf("a %s is accepted as a %s", from.name, to.name)
			}
		}
	}
	// Nor would the same key make them so: the prefix is signed.
	same := NewSigner(vault.New(master(1)))
	same.visitors = same.tokens
	text := same.tokens.sign(placeOf(tenant, embed), tokenPrefix, append([]byte{version}, person.UUID[:]...))
	for _, s := range []string{text, visitorPrefix + text[7:]} {
		if _, ok := same.OpenVisitor(s, tenant, embed); ok {
			t.Errorf("what was signed behind one prefix is accepted behind the other: %s", s)
		}
	}
}

// A payload that is signed and still not what Mint makes comes from another release.
func TestAnotherVersionIsRefused(t *testing.T) {
	payload := make([]byte, originAt)
	payload[expiresAt] = 1 // far ahead
	token := func(b []byte) string { return signer.tokens.sign(nil, tokenPrefix, b) }
	payload[0] = version
	if _, err := signer.Open(token(payload), now); err != nil {
		t.Fatalf("%v: the check is void", err)
	}
	for name, b := range map[string][]byte{"another version": append([]byte{2}, payload[1:]...), "too short": payload[:originAt-1], "empty": nil} {
		if _, err := signer.Open(token(b), now); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	value := func(b ...byte) string { return signer.visitors.sign(placeOf(tenant, embed), visitorPrefix, b) }
	u := uuid(3)
	for name, s := range map[string]string{"another version": value(append([]byte{2}, u[:]...)...), "too short": value(append([]byte{1}, u[1:]...)...),
		"too long": value(append([]byte{1, 1}, u[:]...)...), "empty": value()} {
		if _, ok := signer.OpenVisitor(s, tenant, embed); ok {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestWhatAPreviousMasterKeySignedIsAccepted(t *testing.T) {
	old := NewSigner(vault.New(master(1)))
	both := NewSigner(vault.New(master(2), master(9), master(1)))
	only := NewSigner(vault.New(master(2)))
	token, value := old.Mint(claims()), old.MintVisitor(tenant, embed, person)
	if c, err := both.Open(token, now); err != nil || c != claims() {
		t.Errorf("the token: %+v, %v", c, err)
	}
	if v, ok := both.OpenVisitor(value, tenant, embed); !ok || v != person {
		t.Errorf("the visitor value: %v, %t", v, ok)
	}
	if _, err := only.Open(token, now); !errors.Is(err, ErrInvalid) {
		t.Errorf("the token without the key: %v", err)
	}
	if _, ok := only.OpenVisitor(value, tenant, embed); ok {
		t.Error("the visitor value is accepted without the key")
	}
	// The current one signs.
	if _, err := only.Open(both.Mint(claims()), now); err != nil {
		t.Errorf("a token of today: %v", err)
	}
	if _, ok := only.OpenVisitor(both.MintVisitor(tenant, embed, person), tenant, embed); !ok {
		t.Error("a visitor value of today is refused")
	}
}

func TestManyAtOnce(t *testing.T) {
	done := make(chan error)
	for i := range byte(8) {
		go func() {
			c := claims()
			c.Visitor = id.VisitorID{UUID: uuid(i)}
			for range 500 {
				if got, err := signer.Open(signer.Mint(c), now); err != nil || got != c {
					done <- errors.New("another one's claims")
					return
				}
			}
			done <- nil
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// It is on the way of every call.
func TestReadingATokenAllocatesItsOriginAlone(t *testing.T) {
	token := signer.Mint(claims())
	broken := token[:len(token)-1] + "!"
	// The least of many: under the race detector a pool forgets some of what it is given.
	least := func(f func()) float64 {
		n := testing.AllocsPerRun(1, f)
		for range 200 {
			n = min(n, testing.AllocsPerRun(1, f))
		}
		return n
	}
	if n := least(func() { signer.Open(token, now) }); n != 1 {
		t.Errorf("%.0f allocations", n)
	}
	if n := least(func() { signer.Open(broken, now) }); n != 0 {
		t.Errorf("%.0f allocations for what is no token", n)
	}
}

// Every accepted text is exactly what Mint makes from its claims.
func FuzzOpen(f *testing.F) {
	for _, r := range readers() {
		f.Add(r.value)
		f.Add(r.value[:len(r.value)-1])
	}
	f.Add("")
	f.Add("svc_es_.")
	f.Add("svc_es_" + "." + strings.Repeat("A", 43))
	f.Add("svc_vi_AQ." + strings.Repeat("_", 43))
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := signer.Open(s, now); err == nil && signer.Mint(c) != s {
			t.Errorf("%q is accepted", s)
		}
		if v, ok := signer.OpenVisitor(s, tenant, embed); ok && signer.MintVisitor(tenant, embed, v) != s {
			t.Errorf("%q is accepted as a visitor value", s)
		}
		// Signed as it should be, but of any content.
		if c, err := signer.Open(signer.tokens.sign(nil, tokenPrefix, []byte(s)), now); err == nil && !now.Before(c.Expires) {
			t.Error("an expired token is accepted")
		}
		signer.OpenVisitor(signer.visitors.sign(placeOf(tenant, embed), visitorPrefix, []byte(s)), tenant, embed)
	})
}

func BenchmarkOpen(b *testing.B) {
	two := NewSigner(vault.New(master(2), master(1)))
	for _, c := range []struct {
		name   string
		signer *Signer
	}{{"current key", signer}, {"previous key", two}} {
		b.Run(c.name, func(b *testing.B) {
			token := signer.Mint(claims())
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.signer.Open(token, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOpenVisitor(b *testing.B) {
	value := signer.MintVisitor(tenant, embed, person)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := signer.OpenVisitor(value, tenant, embed); !ok {
			b.Fatal("refused")
		}
	}
}

func BenchmarkMint(b *testing.B) {
	c := claims()
	b.ReportAllocs()
	for b.Loop() {
		signer.Mint(c)
	}
}
