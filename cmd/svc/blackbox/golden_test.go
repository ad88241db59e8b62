package blackbox

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")
var storeBy = flag.String("store-by", "", "the binary for -store")
var storeAs = flag.String("store", "", "write the rows that a stopped service leaves to testdata/stored-NAME.jsonl")

// docs/openapi.json is the output of `svc openapi` and the document that the server serves.
func TestGoldenOpenAPI(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	n := sharedNode(t)
	printed, code := n.svc("openapi")
	if code != 0 {
		t.Fatalf("svc openapi: exit code %d", code)
	}
	file := filepath.Join("..", "..", "..", "docs", "openapi.json")
	if *update {
		if err := os.WriteFile(file, []byte(printed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(golden) != printed {
		t.Error("docs/openapi.json is not what svc openapi prints: run make golden and review the difference")
	}
	anybody := *n.stranger()
	live := anybody.ask(t, ctx, 200, "GET", "/v1/openapi.json", nil, nil, "Authorization", "", "X-Tenant-Id", "")
	var a, b bytes.Buffer
	if err := json.Compact(&a, live.body); err != nil {
		t.Fatal(err)
	}
	if err := json.Compact(&b, []byte(printed)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("GET /v1/openapi.json is not what svc openapi prints")
	}
}
