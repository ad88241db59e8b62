package apikey

import (
	"strings"
	"testing"

	"agentsvc/schemas/id"
)

func TestParseReadsWhatMintMade(t *testing.T) {
	for range 200 {
		want := id.KeyID{UUID: id.NewAnywhere()}
		key := Mint(want)
		if len(key) != Len || !strings.HasPrefix(key, "svc_") {
			t.Fatalf("minted %q", key)
		}
		got, hash, err := Parse(key)
		if err != nil || got != want {
			t.Fatalf("%q reads as %v, %v", key, got, err)
		}
		_, again, _ := Parse(key)
		if !hash.Equal(again) {
			t.Fatal("the hash of one secret differs")
		}
	}
}

func TestIDsAtTheEdges(t *testing.T) {
	var all, none id.KeyID
	all.SetBytes16([16]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255})
	for _, want := range []id.KeyID{all, none} {
		if got, _, err := Parse(Mint(want)); err != nil || got != want {
			t.Errorf("%v reads as %v, %v", want, got, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	key := Mint(id.KeyID{UUID: id.NewAnywhere()})
	swap := func(i int) string {
		c := byte('0')
		if key[i] == c {
			c = '1'
		}
		return key[:i] + string(c) + key[i+1:]
	}
	for name, in := range map[string]string{
		"nothing":                 "",
		"the scheme alone":        "svc_",
		"another scheme":          "sk-" + key[3:],
		"an embed key's scheme":   "svc_pk_" + key[7:],
		"one character less":      key[:Len-1],
		"one character more":      key + "0",
		"another key id":          swap(10),
		"another secret":          swap(40),
		"another checksum":        swap(Len - 1),
		"a character that is not": key[:10] + "-" + key[11:],
		"white space around":      " " + key[:Len-1],
	} {
		if _, _, err := Parse(in); err == nil {
			t.Errorf("%s: %q was accepted", name, in)
		}
	}
}

func TestTwoKeysDifferInPrefixAndHash(t *testing.T) {
	seen := map[string]bool{}
	hashes := map[Hash]bool{}
	for range 100 {
		key := Mint(id.KeyID{UUID: id.NewAnywhere()})
		p := Prefix(key)
		if !strings.HasPrefix(key, p) || len(p) != len(scheme)+prefixLen || seen[p] {
			t.Fatalf("prefix %q of %q", p, key)
		}
		seen[p] = true
		_, h, _ := Parse(key)
		if hashes[h] {
			t.Fatal("two secrets hash alike")
		}
		hashes[h] = true
	}
}

func TestChecksumIsTheUsualOne(t *testing.T) {
	if got := checksum([]byte("123456789")); got != 0xcbf43926 {
		t.Errorf("%08x", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Mint(id.KeyID{UUID: id.NewAnywhere()}))
	f.Add("svc_")
	f.Add(strings.Repeat("z", Len))
	f.Fuzz(func(t *testing.T, s string) {
		key, _, err := Parse(s)
		if err != nil {
			return
		}
		if got := string(appendID(nil, key.UUID)); got != s[len(scheme):len(scheme)+secretAt-1] {
			t.Fatalf("two ways to write the id %v: %q and %q", key, got, s)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	key := Mint(id.KeyID{UUID: id.NewAnywhere()})
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Parse(key); err != nil {
			b.Fatal(err)
		}
	}
}

func TestPublishableKeysHaveAFormOfTheirOwn(t *testing.T) {
	u := id.NewAnywhere()
	for range 200 {
		key := MintPublishable(id.EmbedKeyID{UUID: u})
		got, hash, err := ParsePublishable(key)
		if err != nil || got.UUID != u || len(key) != PublishableLen || !strings.HasPrefix(key, "svc_pk_") {
			t.Fatalf("%q reads as %v, %v", key, got, err)
		}
		if _, again, _ := ParsePublishable(key); !hash.Equal(again) {
			t.Fatal("the hash of one secret differs")
		}
		if p := PublishablePrefix(key); p != key[:len("svc_pk_")+8] {
			t.Fatalf("prefix %q of %q", p, key)
		}
		api := Mint(id.KeyID{UUID: u})
		// The schemes swapped, and what is too long or too short for it cut or filled.
		swapped := "svc_pk_" + api[len("svc_"):]
		for _, other := range []string{api, swapped, key[:len(key)-1], key + "0", key[:50] + "-" + key[51:]} {
			if _, _, err := ParsePublishable(other); err == nil {
				t.Fatalf("%q reads as a publishable key", other)
			}
		}
		for _, other := range []string{key, "svc_" + key[len("svc_pk_"):], key[:Len], key[len(key)-Len:]} {
			if _, _, err := Parse(other); err == nil {
				t.Fatalf("%q reads as an API key", other)
			}
		}
	}
}

func TestParsingAllocatesNothing(t *testing.T) {
	key := MintPublishable(id.EmbedKeyID{UUID: id.NewAnywhere()})
	if n := testing.AllocsPerRun(100, func() { _, _, _ = ParsePublishable(key) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
