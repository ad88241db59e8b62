package webhook

import (
	"encoding/json"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var noon = time.Unix(1_700_000_000, 0)

const (
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	body   = `{"id":"1","type":"webhook.test","data":{"café":"☕"}}`
	// golden was computed by openssl dgst -sha256 -hmac over "<t>.<body>".
	golden = "5c919f1c07ca5cdd983861cfd554005d8492677901dcb4c16d13062f1bb22ce7"
)

func TestSignIsWhatOthersCompute(t *testing.T) {
	want := "t=1700000000,v1=" + golden
	if got := Sign(secret, noon, []byte(body)); got != want {
		t.Errorf("signed %s, want %s", got, want)
	}
	if err := Verify(secret, want, []byte(body), noon); err != nil {
		t.Errorf("verify: %v", err)
	}
}

// The rows of testdata/headers.json, which receivers in other languages are held
// to as well (bench/webhookcheck). What a row does not say, the table does.
func TestVerify(t *testing.T) {
	raw, err := os.ReadFile("testdata/headers.json")
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Name, Secret, Header, Body, Want string
		Now                              float64
	}
	var table struct {
		row
		Rows []json.RawMessage
	}
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	reasons := map[string]error{"": nil}
	for _, err := range []error{ErrMalformedHeader, ErrStaleTimestamp, ErrSignatureMismatch} {
		reasons[err.Error()] = err
	}
	seen := map[string]bool{}
	for _, one := range table.Rows {
		c := table.row
		if err := json.Unmarshal(one, &c); err != nil {
			t.Fatal(err)
		}
		want, ok := reasons[c.Want]
		if !ok || seen[c.Name] {
			t.Fatalf("row %q: wants %q, or stands twice", c.Name, c.Want)
		}
		seen[c.Name] = true
		if got := Verify(c.Secret, c.Header, []byte(c.Body), time.UnixMilli(int64(c.Now*1000))); got != want {
			t.Errorf("%s: %v, want %v", c.Name, got, want)
		}
	}
	if len(seen) < 50 {
		t.Errorf("only %d rows: the table is cut off", len(seen))
	}
}

// A receiver may take the package, or signature.go alone, without anything else.
func TestTheStandardLibraryIsEnough(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, im := range f.Imports {
			seen++
			if first, _, _ := strings.Cut(strings.Trim(im.Path.Value, `"`), "/"); first == "agentsvc" || strings.Contains(first, ".") {
				t.Errorf("%s imports %s", name, im.Path.Value)
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d imports found: the check is void", seen)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add(Sign(secret, noon, []byte(body)), []byte(body))
	f.Add("t=,v1=", []byte{})
	f.Fuzz(func(t *testing.T, header string, b []byte) {
		if err := Verify("another secret", header, b, noon); err == nil {
			t.Errorf("accepted %q", header)
		}
	})
}

func TestCatalogAndWhoHears(t *testing.T) {
	many := make([]Type, MostTypes+1)
	for name, c := range map[string]struct {
		types []Type
		ok    bool
	}{
		"one":           {[]Type{RunCompleted}, true},
		"all":           {[]Type{All}, true},
		"nine":          {Catalog()[:9], true},
		"none":          {nil, false},
		"too many":      {many, false},
		"unknown":       {[]Type{"run.started"}, false},
		"all and more":  {[]Type{All, RunFailed}, false},
		"more and all":  {[]Type{RunFailed, All}, false},
		"the same type": {[]Type{RunFailed, RunFailed}, false},
	} {
		if why := Check(c.types); (why == "") != c.ok {
			t.Errorf("%s: %q", name, why)
		}
	}
	for _, of := range Catalog()[:9] {
		if !Hears([]Type{All}, of) {
			t.Errorf("* does not hear %s", of)
		}
		if Hears([]Type{RunFailed}, of) != (of == RunFailed || of == Test) {
			t.Errorf("run.failed and %s", of)
		}
	}
}

func TestPauses(t *testing.T) {
	want := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second}
	for n := 1; n <= len(want); n++ {
		if d, ok := Pause(FirstPause, n); !ok || d != want[n-1] {
			t.Errorf("after attempt %d: %v %v, want %v", n, d, ok, want[n-1])
		}
	}
	for _, n := range []int{-1, 0, Attempts, Attempts + 1} {
		if _, ok := Pause(FirstPause, n); ok {
			t.Errorf("there is an attempt after %d", n)
		}
	}
}
