package blackbox

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/schemas/testkit"
)

// A tenant's own provider makes the vectors of documents and queries: searches go by meaning, what
// they use is billed at the tenant's prices, and without the provider they go by words.
func TestSearchesGoByMeaning(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*time.Minute)
	var down, refuses atomic.Bool
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Input []string }
		switch {
		case down.Load():
			http.Error(w, "{}", http.StatusServiceUnavailable)
			return
		case refuses.Load() || r.Header.Get("Authorization") != "Bearer sk-own" || json.NewDecoder(r.Body).Decode(&in) != nil:
			http.Error(w, `{"error":{"message":"sk-own may not use this model"}}`, http.StatusForbidden)
			return
		}
		var data []object
		for i, text := range in.Input {
			v := []float64{0.1, 0, 0}
			for word, at := range map[string]int{"car": 1, "vehicle": 1, "dog": 2, "puppy": 2} {
				if strings.Contains(strings.ToLower(text), word) {
					v[at] = 1
				}
			}
			data = append(data, object{"index": i, "embedding": v})
		}
		json.NewEncoder(w).Encode(object{"data": data, "usage": object{"prompt_tokens": 1000 * len(in.Input)}})
	}))
	defer provider.Close()
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8")
	n.start()
	c := n.tenant("meaning")
	c.ask(t, ctx, 201, "POST", "/v1/model-providers", object{"slug": "own", "kind": "openai", "base_url": provider.URL, "credentials": object{"api_key": "sk-own"},
		"prices": object{"small": object{"input_per_mtok": 2, "output_per_mtok": 0}}}, nil)
	var base struct{ ID string }
	c.ask(t, ctx, 201, "POST", "/v1/knowledge-bases", object{"name": "Pets and cars", "embedding": object{"provider": "own", "model": "small"}}, &base)
	path := "/v1/knowledge-bases/" + base.ID
	type document struct {
		ID, Status string
		Error      *string
	}
	upload := func(name, text string) string {
		t.Helper()
		var docs struct{ Items []document }
		form, body := multipartFile(t, name, text)
		c.ask(t, ctx, 202, "POST", path+"/documents", body, &docs, "Content-Type", form)
		return docs.Items[0].ID
	}
	becomes := func(id, status string) (d document) {
		t.Helper()
		testkit.Eventually(t, "the document is "+status, func() bool {
			d = document{}
			c.ask(t, ctx, 200, "GET", path+"/documents/"+id, nil, &d)
			return d.Status == status
		})
		return d
	}
	first := func(query string) string {
		t.Helper()
		var hits struct {
			Items []struct {
				Name string `json:"document_name"`
			}
		}
		c.ask(t, ctx, 200, "POST", path+"/search", object{"query": query}, &hits)
		if len(hits.Items) == 0 {
			return ""
		}
		return hits.Items[0].Name
	}
	dog := upload("dog.txt", "Every dog needs meat.")
	becomes(dog, "ready")
	becomes(upload("car.txt", "Every car needs oil."), "ready")
	if got := first("puppy "); got != "dog.txt" {
		t.Errorf("by meaning: %q", got)
	}
	var usage struct {
		Items []struct {
			Kind, Model string
			RunID       *string `json:"run_id"`
			TokensIn    int     `json:"tokens_in"`
			CostUSD     float64 `json:"cost_usd"`
		}
	}
	c.ask(t, ctx, 200, "GET", "/v1/usage/records?kind=embedding", nil, &usage)
	if len(usage.Items) != 3 { // two documents and a query
		t.Errorf("%+v", usage)
	}
	for _, u := range usage.Items {
		if u.Model != "small" || u.RunID != nil || u.TokensIn != 1000 || u.CostUSD != 0.002 {
			t.Errorf("%+v", u)
		}
	}
	down.Store(true)
	if got := first("oil"); got != "car.txt" {
		t.Errorf("by words: %q", got)
	}
	down.Store(false)
	refuses.Store(true)
	c.ask(t, ctx, 200, "PATCH", path, object{"embedding": object{"provider": "own", "model": "large"}}, nil)
	if d := becomes(dog, "failed"); d.Error == nil || strings.Contains(*d.Error, "sk-own") || !strings.Contains(*d.Error, "may not use this model") {
		t.Errorf("%+v", d)
	}
	c.ask(t, ctx, 200, "PATCH", path, object{"embedding": object{"provider": "simulated", "model": "any"}}, nil)
	becomes(dog, "ready")
	if got := first("dogs "); got != "dog.txt" {
		t.Errorf("the simulated provider: %q", got)
	}
}
