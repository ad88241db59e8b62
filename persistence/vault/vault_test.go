package vault

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
)

func testKey(b byte) Secret32 { return NewSecret32([32]byte(bytes.Repeat([]byte{b}, 32))) }

var place = AAD{
	Tenant: id.TenantID{UUID: id.UUID{1}},
	Table:  "model_providers",
	Row:    "0190-row",
	Column: "credentials",
}

func seal(t testing.TB, v *Vault, aad AAD, plain []byte) Sealed {
	t.Helper()
	s, err := v.Seal(aad, plain)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatIsSealedOpens(t *testing.T) {
	v := New(testKey(1))
	for _, size := range []int{0, 1, 15, 16, 17, 200, 64 << 10, 1 << 20} {
		plain := bytes.Repeat([]byte{'x'}, size)
		s := seal(t, v, place, plain)
		if len(s) != size+Overhead {
			t.Errorf("%d bytes became %d, want %d", size, len(s), size+Overhead)
		}
		if size >= 15 && bytes.Contains(s, plain[:15]) {
			t.Errorf("%d bytes: the plain text is visible", size)
		}
		got, err := v.Open(place, s)
		if err != nil || !bytes.Equal(got, plain) || got == nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestALongPlaceIsBoundToo(t *testing.T) {
	v := New(testKey(1))
	long := place
	long.Row = strings.Repeat("r", 1000)
	s := seal(t, v, long, []byte("x"))
	if _, err := v.Open(long, s); err != nil {
		t.Error(err)
	}
	long.Row += "r"
	if _, err := v.Open(long, s); !errors.Is(err, ErrOpen) {
		t.Errorf("moved: %v", err)
	}
}

func TestTheSameValueIsNeverSealedAlike(t *testing.T) {
	v := New(testKey(1))
	seen := map[string]bool{}
	for range 1000 {
		s := seal(t, v, place, []byte("same"))
		for _, part := range [][]byte{s[wrapAt:wrappedAt], s[wrappedAt:bodyAt], s[bodyAt:dataAt], s[dataAt:]} {
			if seen[string(part)] {
				t.Fatal("a part repeats")
			}
			seen[string(part)] = true
		}
	}
}

func TestTheDataKeyDoesNotStandInTheSealedValue(t *testing.T) {
	v := New(testKey(1))
	s := seal(t, v, place, []byte("x"))
	var key [keySize]byte
	if _, err := v.unwrap(place, s, &key); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(s, key[:]) {
		t.Error("it does")
	}
}

func TestAMovedValueDoesNotOpen(t *testing.T) {
	v := New(testKey(1))
	s := seal(t, v, place, []byte("x"))
	for name, move := range map[string]func(*AAD){
		"another tenant":           func(a *AAD) { a.Tenant = id.TenantID{UUID: id.UUID{2}} },
		"another table":            func(a *AAD) { a.Table = "connections" },
		"another row":              func(a *AAD) { a.Row = "0191-row" },
		"another column":           func(a *AAD) { a.Column = "secret" },
		"parts shifted right":      func(a *AAD) { a.Table, a.Row = "model_provider", "s0190-row" },
		"parts shifted left":       func(a *AAD) { a.Row, a.Column = "0190-rowc", "redentials" },
		"the empty place":          func(a *AAD) { *a = AAD{} },
		"table and column swapped": func(a *AAD) { a.Table, a.Column = a.Column, a.Table },
	} {
		t.Run(name, func(t *testing.T) {
			aad := place
			move(&aad)
			if _, err := v.Open(aad, s); !errors.Is(err, ErrOpen) {
				t.Errorf("Open: %v", err)
			}
			if _, _, err := New(testKey(2), testKey(1)).Rewrap(aad, s); !errors.Is(err, ErrOpen) {
				t.Errorf("Rewrap: %v", err)
			}
		})
	}
}

func TestTheValueOfOneRowUnderTheKeyOfAnotherDoesNotOpen(t *testing.T) {
	v := New(testKey(1))
	a, b := seal(t, v, place, []byte("aaaa")), seal(t, v, place, []byte("bbbb"))
	mixed := append(append(Sealed{}, a[:bodyAt]...), b[bodyAt:]...)
	if _, err := v.Open(place, mixed); !errors.Is(err, ErrOpen) {
		t.Fatalf("got %v", err)
	}
}

func TestAPreviousKeyOpensAndTheCurrentSeals(t *testing.T) {
	old := New(testKey(1))
	s := seal(t, old, place, []byte("x"))
	rotated := New(testKey(2), testKey(3), testKey(1))
	if got, err := rotated.Open(place, s); err != nil || string(got) != "x" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := New(testKey(2)).Open(place, s); !errors.Is(err, ErrOpen) {
		t.Errorf("without the previous key: %v", err)
	}
	if _, err := old.Open(place, seal(t, rotated, place, []byte("y"))); !errors.Is(err, ErrOpen) {
		t.Errorf("the old vault opens what the new key sealed: %v", err)
	}
}

func TestRewrapMovesAValueToTheCurrentKey(t *testing.T) {
	s := seal(t, New(testKey(1)), place, []byte("x"))
	before := bytes.Clone(s)
	rotated := New(testKey(2), testKey(1))
	r, changed, err := rotated.Rewrap(place, s)
	if err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	if !bytes.Equal(s, before) {
		t.Error("its argument was changed")
	}
	if !bytes.Equal(r[bodyAt:], s[bodyAt:]) {
		t.Error("the value was encrypted anew")
	}
	if got, err := New(testKey(2)).Open(place, r); err != nil || string(got) != "x" {
		t.Fatalf("without the previous key: %q, %v", got, err)
	}
	if again, changed, err := rotated.Rewrap(place, r); err != nil || changed || !bytes.Equal(again, r) {
		t.Errorf("the second time: changed %v, %v", changed, err)
	}
}

func TestDamageDoesNotOpen(t *testing.T) {
	v := New(testKey(1))
	s := seal(t, v, place, []byte("twenty bytes of text"))
	refused := func(what string, damaged Sealed) {
		t.Helper()
		if got, err := v.Open(place, damaged); !errors.Is(err, ErrOpen) || got != nil {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	for i := range s {
		for bit := range 8 {
			damaged := bytes.Clone(s)
			damaged[i] ^= 1 << bit
			refused(fmt.Sprintf("bit %d of byte %d flipped", bit, i), damaged)
		}
	}
	for n := range s {
		refused(fmt.Sprintf("cut to %d bytes", n), s[:n])
	}
	tag := len(s) - tagSize
	all := func(f func(byte) byte) Sealed {
		d := bytes.Clone(s)
		for i := tag; i < len(d); i++ {
			d[i] = f(d[i])
		}
		return d
	}
	refused("nothing", nil)
	refused("one byte more", append(bytes.Clone(s), 0))
	refused("tag inverted", all(func(b byte) byte { return ^b }))
	refused("tag all zero", all(func(byte) byte { return 0 }))
	refused("tag all ones", all(func(byte) byte { return 0xff }))
	refused("every byte of the tag with its top bit flipped", all(func(b byte) byte { return b ^ 0x80 }))
	refused("zeros", make(Sealed, len(s)))
}

// The format must not drift: what this test's value was made with stays readable.
func TestTheFormatIsPlainGCM(t *testing.T) {
	k := testKey(7)
	s := seal(t, New(k), place, []byte("hello"))
	gcm := func(key []byte) cipher.AEAD {
		b, err := aes.NewCipher(key)
		if err != nil {
			t.Fatal(err)
		}
		g, err := cipher.NewGCM(b)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	bound := "\x00\x00\x00\x0fmodel_providers\x00\x00\x00\x080190-row\x00\x00\x00\x0bcredentials"
	tenant := string(place.Tenant.UUID[:])
	key, err := gcm(k.key[:]).Open(nil, s[5:17], s[17:65], []byte("\x01k"+tenant+bound))
	if err != nil {
		t.Fatal("data key: ", err)
	}
	plain, err := gcm(key).Open(nil, s[65:77], s[77:], []byte("\x01d"+tenant+bound))
	if err != nil || string(plain) != "hello" {
		t.Fatalf("value: %q, %v", plain, err)
	}
}

func TestSealedTravelsAsBytea(t *testing.T) {
	pool := pgtest.New(t).System(t)
	in := seal(t, New(testKey(1)), place, []byte("x"))
	var out Sealed
	if err := pool.QueryRow(t.Context(), "SELECT $1::bytea", in).Scan(&out); err != nil || !bytes.Equal(in, out) {
		t.Fatalf("%x, %v", []byte(out), err)
	}
	if err := pool.QueryRow(t.Context(), "SELECT $1::bytea", Sealed(nil)).Scan(&out); err != nil || out != nil {
		t.Fatalf("NULL: %x, %v", []byte(out), err)
	}
	var outs []Sealed
	if err := pool.QueryRow(t.Context(), "SELECT $1::bytea[]", []Sealed{in, in}).Scan(&outs); err != nil || len(outs) != 2 || !bytes.Equal(outs[1], in) {
		t.Fatalf("%d, %v", len(outs), err)
	}
}

func TestSecretsDoNotPrint(t *testing.T) {
	const hidden = "hunter2-hunter2-hunter2-hunter2!"
	secret := NewSecret([]byte(hidden))
	key := NewSecret32([32]byte([]byte(hidden)))
	type inside struct {
		S Secret
		P *Secret
		K Secret32
	}
	in := inside{secret, &secret, key}
	var out strings.Builder
	for _, value := range []any{secret, &secret, key, &key, in, &in, []Secret{secret}, map[string]Secret32{"k": key}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
			fmt.Fprintf(&out, verb+"\n", value)
		}
		b, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
		log := zerolog.New(&out)
		log.Info().Interface("i", value).Any("a", value).Str("s", fmt.Sprint(value)).Msg("")
	}
	log := zerolog.New(&out)
	log.Info().Object("o", secret).Object("k", key).Stringer("s", secret).Msg("")
	said := out.String()
	for _, leak := range []string{hidden, "hunter2", fmt.Sprintf("%x", hidden), fmt.Sprintf("%X", hidden),
		base64.StdEncoding.EncodeToString([]byte(hidden)), "104 117 110", "104,117,110", "0x68, 0x75"} {
		if strings.Contains(said, leak) {
			t.Errorf("%q is visible in %s", leak, said)
		}
	}
	if !strings.Contains(said, redacted) {
		t.Error("nothing says [redacted]")
	}
	if string(secret.Reveal()) != hidden || key.Reveal() != [32]byte([]byte(hidden)) || secret.IsZero() || !(Secret{}).IsZero() {
		t.Error("Reveal answers something else")
	}
}

func TestParseKey(t *testing.T) {
	good := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xfb}, 32))
	if key, err := ParseKey(" " + good + "\n"); err != nil || key != testKey(0xfb) {
		t.Fatalf("%v", err)
	}
	for _, tt := range []struct{ name, text, words string }{
		{"empty", "", "empty"},
		{"31 bytes", base64.StdEncoding.EncodeToString(make([]byte, 31)), "31 bytes"},
		{"33 bytes", base64.StdEncoding.EncodeToString(make([]byte, 33)), "33 bytes"},
		{"zeros", base64.StdEncoding.EncodeToString(make([]byte, 32)), "zero"},
		{"no base64", "!" + good[1:], "base64"},
		{"the other alphabet", strings.ReplaceAll(good, "+", "-"), "base64"},
		{"no padding", strings.TrimRight(good, "="), "base64"},
		{"hexadecimal", strings.Repeat("ab", 32), "48 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseKey(tt.text)
			if !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), tt.words) {
				t.Fatalf("got %v", err)
			}
			if len(tt.text) > 8 && strings.Contains(err.Error(), tt.text[1:8]) {
				t.Errorf("the error shows the key: %v", err)
			}
		})
	}
	if keys, err := ParseKeys(good + ", " + good); err != nil || len(keys) != 2 {
		t.Errorf("a list: %d, %v", len(keys), err)
	}
	if keys, err := ParseKeys(""); err != nil || len(keys) != 0 {
		t.Errorf("no list: %d, %v", len(keys), err)
	}
	if _, err := ParseKeys(good + ",x"); err == nil || !strings.Contains(err.Error(), "key 2") {
		t.Errorf("a bad second key: %v", err)
	}
}

func TestLoadOrCreate(t *testing.T) {
	t.Run("processes that come at once agree", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		keys := make([]Secret32, 8)
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				key, err := LoadOrCreate(dir)
				if err != nil {
					t.Error(err)
				}
				keys[i] = key
			})
		}
		wg.Wait()
		for _, key := range keys {
			if key != keys[0] || key == (Secret32{}) {
				t.Fatal("they do not")
			}
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Fatalf("%v, %v", entries, err)
		}
		if info, err := entries[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	})
	t.Run("a file that others may read is refused", func(t *testing.T) {
		dir := t.TempDir()
		if _, err := LoadOrCreate(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, "master.key"), 0o640); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadOrCreate(dir); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("a broken file is an error and stays", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "master.key")
		if err := os.WriteFile(path, []byte("broken"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadOrCreate(dir); !errors.Is(err, ErrKey) {
			t.Fatalf("got %v", err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != "broken" {
			t.Errorf("%q, %v", b, err)
		}
	})
}

func FuzzOpen(f *testing.F) {
	v := New(testKey(1), testKey(2))
	good := seal(f, v, place, []byte("sealed"))
	old := seal(f, New(testKey(2)), place, []byte("sealed"))
	for _, s := range [][]byte{good, old, nil, {version}, good[:Overhead-1], good[:Overhead], make([]byte, Overhead)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s []byte) {
		plain, err := v.Open(place, s)
		if bytes.Equal(s, good) || bytes.Equal(s, old) {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		if err == nil && !bytes.Equal(plain, []byte("sealed")) {
			t.Fatalf("a forgery opens: %x", s)
		}
		if _, _, err := v.Rewrap(place, s); err != nil && !errors.Is(err, ErrOpen) {
			t.Fatal(err)
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	v, plain := New(testKey(1)), make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Seal(place, plain); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	v := New(testKey(1))
	s := seal(b, v, place, make([]byte, 200))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Open(place, s); err != nil {
			b.Fatal(err)
		}
	}
}
