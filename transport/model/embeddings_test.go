package model

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentsvc/schemas/id"
	schema "agentsvc/schemas/model"
	fair "agentsvc/schemas/turn"
	"agentsvc/transport/egress"
)

// embedServer answers requests for embeddings by a list of responses, and the last one again.
type embedServer struct {
	mu       sync.Mutex // guards the fields below
	requests [][]string
	auth     string
	replies  []func(w http.ResponseWriter, texts []string)
}

func (s *embedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Model  string
		Input  []string
		Format string `json:"encoding_format"`
	}
	b, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(b, &in); err != nil || r.URL.Path != "/v1/embeddings" || in.Model != "small" || in.Format != "float" {
		http.Error(w, `{"error":{"message":"bad request"}}`, http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.requests, s.auth = append(s.requests, in.Input), r.Header.Get("Authorization")
	reply := s.replies[min(len(s.requests), len(s.replies))-1]
	s.mu.Unlock()
	reply(w, in.Input)
}

func says(status int, body string, header ...string) func(http.ResponseWriter, []string) {
	return func(w http.ResponseWriter, _ []string) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// vectors answers in the reverse order. The vector of a text tells its length.
func vectors(w http.ResponseWriter, texts []string) {
	var data []string
	for i := len(texts) - 1; i >= 0; i-- {
		data = append(data, fmt.Sprintf(`{"object":"embedding","index":%d,"embedding":[3e0,%d]}`, i, len(texts[i])))
	}
	fmt.Fprintf(w, `{"object":"list","data":[%s],"model":"small","usage":{"prompt_tokens":%d,"total_tokens":9}}`, strings.Join(data, ","), 10*len(texts))
}

func newEmbedRig(t *testing.T, replies ...func(http.ResponseWriter, []string)) (*embedServer, schema.Embedder, *pauses) {
	t.Helper()
	s, p := &embedServer{replies: replies}, &pauses{}
	server := httptest.NewServer(s)
	r := NewRegistry(Config{Guard: egress.New(egress.Config{Allow: loopback}), RequireTLS: true, Sleep: p.sleep, Rand: func() float64 { return 0.5 }})
	t.Cleanup(func() { r.Close(); server.Close() })
	return s, r.Embedder(Provider{Kind: OpenAI, BaseURL: server.URL + "/v1/", APIKey: key}), p
}

func TestEmbeddingsComeInBatches(t *testing.T) {
	t.Parallel()
	s, e, _ := newEmbedRig(t, vectors)
	var texts []string
	for i := range 130 {
		texts = append(texts, strings.Repeat("x", i+1))
	}
	texts = append(texts, strings.Repeat("y", maxEmbedBytes+1), "z")
	out, err := e.Embed(t.Context(), "small", texts)
	if err != nil || len(out.Vectors) != len(texts) || out.TokensIn != int64(10*len(texts)) || out.Estimated {
		t.Fatalf("%d vectors, %d tokens, %v", len(out.Vectors), out.TokensIn, err)
	}
	var sizes []int
	for _, r := range s.requests {
		sizes = append(sizes, len(r))
	}
	if fmt.Sprint(sizes) != "[64 64 2 1 1]" || s.auth != "Bearer "+key {
		t.Errorf("batches %v, %q", sizes, s.auth)
	}
	for i, v := range out.Vectors {
		length, ratio := math.Hypot(float64(v[0]), float64(v[1])), float64(v[1]/v[0])*3
		if math.Abs(length-1) > 1e-5 || math.Abs(ratio-float64(len(texts[i]))) > 0.1*ratio/100+1e-2 {
			t.Fatalf("text %d has %v", i, v)
		}
	}
}

func TestEmbeddingsThatFail(t *testing.T) {
	t.Parallel()
	one := func(vector string) func(http.ResponseWriter, []string) {
		return says(200, `{"data":[{"index":0,"embedding":`+vector+`}]}`)
	}
	cut := func(w http.ResponseWriter, _ []string) {
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, `{"data":[`)
		panic(http.ErrAbortHandler)
	}
	for _, c := range []struct {
		name    string
		replies []func(http.ResponseWriter, []string)
		kind    schema.Kind // "": no error
		calls   int
		message string
	}{
		{"a rate limit is waited for", []func(http.ResponseWriter, []string){says(429, "{}", "Retry-After", "7"), vectors}, "", 2, ""},
		{"an error of the server is tried again", []func(http.ResponseWriter, []string){says(503, "{}"), says(500, "{}"), vectors}, "", 3, ""},
		{"a cut connection is tried again", []func(http.ResponseWriter, []string){cut, vectors}, "", 2, ""},
		{"one that stays", []func(http.ResponseWriter, []string){says(503, `{"error":{"message":"too busy"}}`)}, schema.Unavailable, 3, "too busy"},
		{"a refusal is not tried again", []func(http.ResponseWriter, []string){says(400, `{"error":{"message":"no such model"}}`)}, schema.Refused, 1, "no such model"},
		{"a wrong key, which is not repeated", []func(http.ResponseWriter, []string){says(401, `{"error":{"message":"bad key `+key+`"}}`)}, schema.Refused, 1, "bad key [redacted]"},
		{"no JSON", []func(http.ResponseWriter, []string){says(200, "<html>")}, schema.Broken, 1, "not JSON"},
		{"no vectors", []func(http.ResponseWriter, []string){says(200, `{"data":[]}`)}, schema.Broken, 1, "another number"},
		{"two vectors for one text", []func(http.ResponseWriter, []string){says(200, `{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}`)}, schema.Broken, 1, "another number"},
		{"a wrong index", []func(http.ResponseWriter, []string){says(200, `{"data":[{"index":1,"embedding":[1]}]}`)}, schema.Broken, 1, "indexes"},
		{"an empty vector", []func(http.ResponseWriter, []string){one("[]")}, schema.Broken, 1, "dimensions"},
		{"too many dimensions", []func(http.ResponseWriter, []string){one("[1" + strings.Repeat(",1", maxDimensions) + "]")}, schema.Broken, 1, "dimensions"},
		{"a zero vector", []func(http.ResponseWriter, []string){one("[0,0]")}, schema.Broken, 1, "without a direction"},
		{"NaN", []func(http.ResponseWriter, []string){one("[NaN,1]")}, schema.Broken, 1, "not JSON"},
		{"a number that is too large", []func(http.ResponseWriter, []string){one("[1e300,1]")}, schema.Broken, 1, "not JSON"},
		{"a response without end", []func(http.ResponseWriter, []string){func(w http.ResponseWriter, _ []string) {
			io.WriteString(w, strings.Repeat(" ", vectorBytes+besideBytes+1))
		}}, schema.Broken, 1, "too large"},
		{"a redirect", []func(http.ResponseWriter, []string){says(302, "", "Location", "/v1/other")}, schema.Refused, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, e, p := newEmbedRig(t, c.replies...)
			out, err := e.Embed(t.Context(), "small", []string{"four"})
			var failed *schema.Error
			errors.As(err, &failed)
			if (err == nil) != (c.kind == "") || err != nil && (failed.Kind != c.kind || !strings.Contains(failed.Message, c.message) || strings.Contains(err.Error(), key) || out.Vectors != nil) {
				t.Errorf("%v", err)
			}
			if len(s.requests) != c.calls || len(p.list) != c.calls-1 {
				t.Errorf("%d calls, pauses %v", len(s.requests), p.list)
			}
			if strings.HasPrefix(c.name, "a rate limit") && p.list[0] != 7*time.Second {
				t.Errorf("pauses %v", p.list)
			}
		})
	}
}

// What was used before a failure is counted; a provider that counts nothing is estimated.
func TestTokensOfEmbeddings(t *testing.T) {
	t.Parallel()
	_, e, _ := newEmbedRig(t, vectors, says(400, "{}"))
	out, err := e.Embed(t.Context(), "small", strings.Split(strings.Repeat("a ", 64)+"b", " "))
	if err == nil || out.TokensIn != 640 {
		t.Errorf("%+v, %v", out, err)
	}
	_, e, _ = newEmbedRig(t, says(200, `{"data":[{"embedding":[1,2]}]}`))
	if out, err := e.Embed(t.Context(), "small", []string{"eight by"}); err != nil || out.TokensIn != 2 || !out.Estimated {
		t.Errorf("%+v, %v", out, err)
	}
	_, e, _ = newEmbedRig(t, says(200, `{"data":[{"embedding":[1,2]}],"usage":{"prompt_tokens":9223372036854775807}}`))
	if out, err := e.Embed(t.Context(), "small", []string{"x"}); err != nil || out.TokensIn != schema.MaxTurnTokens || out.Estimated {
		t.Errorf("%+v, %v", out, err)
	}
}

// A pause that the caller's deadline does not allow is not begun.
func TestAQueryDoesNotWaitForARetry(t *testing.T) {
	t.Parallel()
	s, e, p := newEmbedRig(t, says(429, "{}", "Retry-After", "60"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := e.Embed(ctx, "small", []string{"x"}); err == nil || len(s.requests) != 1 || len(p.list) != 0 {
		t.Errorf("%v after %d calls, pauses %v", err, len(s.requests), p.list)
	}
}

func TestProvidersWithoutEmbeddings(t *testing.T) {
	t.Parallel()
	r := NewRegistry(Config{Guard: egress.New(egress.Config{}), Anthropic: Provider{APIKey: "k"}})
	defer r.Close()
	for _, p := range []Provider{{Kind: Anthropic, APIKey: "k"}, {Kind: OpenAI}, {Kind: "other"}} {
		_, err := r.Embedder(p).Embed(t.Context(), "m", []string{"x"})
		var failed *schema.Error
		if !errors.As(err, &failed) || failed.Kind != schema.Refused {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if r.Embeds(Anthropic) || r.Embeds(OpenAI) || !r.Embeds(Simulated) || r.Embeds("other") {
		t.Error("which providers embed")
	}
	_, e, _ := newEmbedRig(t, vectors)
	guarded := NewRegistry(Config{Guard: egress.New(egress.Config{})})
	defer guarded.Close()
	if _, err := guarded.Embedder(Provider{Kind: OpenAI, BaseURL: "http://127.0.0.1:9/v1"}).Embed(t.Context(), "m", []string{"x"}); !errors.Is(err, egress.ErrRefused) {
		t.Errorf("the guard: %v", err)
	}
	if out, err := e.Embed(t.Context(), "small", nil); err != nil || len(out.Vectors) != 0 {
		t.Errorf("no texts: %v", err)
	}
}

// packed answers with a compressed text.
func packed(text string) func(http.ResponseWriter, []string) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	z.Close()
	return says(200, b.String(), "Content-Encoding", "gzip")
}

// A response is refused before it takes more memory than vectors for the texts may have: millions of empty values are a small
// response on the wire, and a decoder would spend ten times their size on them. It does not run beside other tests, because
// it counts what the process allocates.
func TestAResponseThatGrows(t *testing.T) {
	for name, text := range map[string]string{"many vectors": `{"data":[` + strings.Repeat("{},", 5_000_000) + `{}]}`, "in the size of vectors": `{"data":[` + strings.Repeat("{},", vectorBytes/3) + `{}]}`} {
		_, e, _ := newEmbedRig(t, packed(text))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := e.Embed(t.Context(), "small", []string{"x"})
		runtime.ReadMemStats(&after)
		if failed := new(schema.Error); !errors.As(err, &failed) || failed.Kind != schema.Broken || !strings.Contains(failed.Message, "too ") {
			t.Errorf("%s: %v", name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
			t.Errorf("%s: took %d KiB", name, took>>10)
		}
	}
}

// Large responses are read while the tenant has places. One that finds none in time fails, and small ones need none.
func TestLargeResponsesHavePlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		large := `{"data":[{"embedding":[3,4]}]` + strings.Repeat(" ", smallEmbed) + `}`
		text := large
		hc := &http.Client{Transport: trip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(text))}, nil
		})}
		r := &Registry{hc: hc, embeds: fair.New(2, 1), c: Config{Sleep: func(context.Context, time.Duration) error { return nil }}}
		e := newEmbeddings(r, Provider{Kind: OpenAI})
		mine, other := fair.With(t.Context(), id.TenantID{UUID: id.NewAnywhere()}), fair.With(t.Context(), id.TenantID{UUID: id.NewAnywhere()})
		if err := r.embeds.Take(mine, fair.Tenant(mine)); err != nil {
			t.Fatal(err)
		}
		query, cancel := context.WithTimeout(mine, 2*time.Second)
		defer cancel()
		if _, err := e.Embed(query, "m", []string{"x"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a query: %v", err)
		}
		if _, err := e.Embed(mine, "m", []string{"x"}); err == nil || !strings.Contains(err.Error(), "no room") {
			t.Errorf("a document: %v", err)
		}
		if _, err := e.Embed(other, "m", []string{"x"}); err != nil {
			t.Errorf("another tenant: %v", err)
		}
		text = `{"data":[{"embedding":[3,4]}]}`
		if _, err := e.Embed(mine, "m", []string{"x"}); err != nil {
			t.Errorf("a small response: %v", err)
		}
		text = large
		r.embeds.Give(fair.Tenant(mine))
		for range 3 {
			if _, err := e.Embed(mine, "m", []string{"x"}); err != nil {
				t.Errorf("with a place: %v", err)
			}
		}
	})
}

// trip is a function as an http.RoundTripper.
type trip func(*http.Request) (*http.Response, error)

func (f trip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
