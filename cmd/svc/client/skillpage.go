package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"strings"
)

const (
	maxShot  = 8 << 20  // bytes of one screenshot
	maxShots = 64 << 20 // of all of one page
)

// skillPageTemplate is one page that loads nothing and runs no script.
var skillPageTemplate = template.Must(template.New("run").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><title>Run {{.Run.ID}}</title>
<style>body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}img{max-width:100%;border:1px solid #ccc}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.3rem .6rem;text-align:left}pre{white-space:pre-wrap}.failed{color:#b00}</style></head><body>
<h1>{{.Run.Mode}}: {{.Run.Status}}{{with .Run.Code}} ({{.}}){{end}}</h1>
<p>Run {{.Run.ID}}, {{.Run.CreatedAt}}</p>
{{define "steps"}}<ol>{{range .}}<li><p class="{{.Status}}">{{.Label}} <small>{{.ID}}, {{.Kind}}, {{.Status}}{{with .Note}}: {{.}}{{end}}</small></p>{{with .Image}}<img alt="the page after this step" src="{{.}}">{{end}}</li>{{end}}</ol>{{end}}
<h2>Steps</h2>{{template "steps" .Steps}}
{{with .Run.Precommit}}<h2>Before the commit</h2><p>{{.Title}}: {{.URL}}</p><table><tr><th>Value</th><th>As read from the page</th></tr>{{range $k, $v := .Values}}<tr><td>{{$k}}</td><td>{{$v}}</td></tr>{{end}}</table>{{end}}
{{with .Preview}}<p><img alt="the page before the commit" src="{{.}}"></p>{{end}}
{{with .Run.Verification}}<h2>Checks</h2><table><tr><th>Check</th><th>Expected</th><th>Found</th><th>Holds</th></tr>{{range .}}<tr><td>{{.Kind}}</td><td>{{.Expected}}</td><td>{{.Actual}}</td><td>{{if .OK}}yes{{else}}no{{end}}</td></tr>{{end}}</table>{{end}}
{{with .Result}}<h2>Result</h2><pre>{{.}}</pre>{{end}}
{{with .Run.Compensation}}<h2>Compensation</h2><p>{{if .Ran}}All steps ran.{{else}}It did not run to its end.{{end}} {{with .Error}}{{.}}{{end}}</p>{{end}}
{{with .Undone}}{{template "steps" .}}{{end}}
</body></html>
`))

type pageStep struct {
	skillStepView
	Image template.URL
}

// skillPage returns a run as one HTML page with its screenshots in it.
func skillPage(ctx context.Context, c *Client, r *SkillRunView) ([]byte, error) {
	left := maxShots
	image := func(key string) (template.URL, error) {
		if key == "" || left <= 0 {
			return "", nil
		}
		b, err := skillShot(ctx, c, key)
		left -= len(b)
		if err != nil || len(b) == 0 {
			return "", err
		}
		return template.URL("data:image/jpeg;base64," + base64.StdEncoding.EncodeToString(b)), nil // made of letters here
	}
	steps := func(from []skillStepView) ([]pageStep, error) {
		out := make([]pageStep, len(from))
		for i, s := range from {
			shot, err := image(s.Shot)
			if err != nil {
				return nil, err
			}
			out[i] = pageStep{s, shot}
		}
		return out, nil
	}
	page := struct {
		Run           *SkillRunView
		Steps, Undone []pageStep
		Preview       template.URL
		Result        string
	}{Run: r}
	var err error
	if page.Steps, err = steps(r.Steps); err != nil {
		return nil, err
	}
	if r.Precommit != nil {
		if page.Preview, err = image(r.Precommit.Shot); err != nil {
			return nil, err
		}
	}
	if r.Compensation != nil {
		if page.Undone, err = steps(r.Compensation.Steps); err != nil {
			return nil, err
		}
	}
	if s := string(r.Result); s != "null" {
		page.Result = s
	}
	var b bytes.Buffer
	if err := skillPageTemplate.Execute(&b, page); err != nil {
		return nil, fmt.Errorf("write the page: %w", err)
	}
	return b.Bytes(), nil
}

// skillShot downloads a screenshot; nothing if it is gone.
func skillShot(ctx context.Context, c *Client, key string) ([]byte, error) {
	parts := strings.Split(key, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	resp, err := c.request(ctx, http.MethodGet, "/v1/browser-skills/artifacts/"+strings.Join(parts, "/"), nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, nil
	default:
		return nil, c.problemOf(resp)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxShot+1))
	if err == nil && len(b) > maxShot {
		return nil, fmt.Errorf("the screenshot %s is larger than %d bytes", key, maxShot)
	}
	return b, err
}
