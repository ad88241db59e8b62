package embed

import (
	"context"
	"strings"

	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
	"agentsvc/transport/embed/widget"
)

const demoPath = "/embed/v1/demo"

func (e *Embed) assetRoutes(t *edge.Table) {
	edge.HandleRaw(t, edge.Route{Method: "GET", Path: widget.ScriptPath, ID: "getWidget", Tag: Tag, MediaType: "text/javascript", Tagged: true,
		Summary:     "Load the widget",
		Description: "One file: script tag, custom element and headless client. It has an ETag. A service that was built without it answers EMBED_BUNDLE_UNAVAILABLE.",
		Codes:       []problem.Code{problem.CodeEmbedBundleUnavailable}}, e.script)
	edge.HandleRaw(t, edge.Route{Method: "GET", Path: demoPath, ID: "getWidgetDemo", MediaType: "text/html", Hidden: true,
		Summary: "A page with the widget", Tag: Tag}, e.demo)
}

func (e *Embed) script(_ context.Context, _ *edge.Caller, in *edge.Raw) (*edge.RawAnswer, error) {
	bundle := e.Bundle()
	if bundle == nil {
		return nil, problem.New(problem.CodeEmbedBundleUnavailable, "This build of the service has no widget: build it with make build.")
	}
	return bundle.Answer(in,
		edge.Header{Name: "Cache-Control", Value: "public, max-age=300, stale-while-revalidate=86400"},
		edge.Header{Name: "Access-Control-Allow-Origin", Value: "*"}, // a page may pin the script by its hash
		edge.Header{Name: "Cross-Origin-Resource-Policy", Value: "cross-origin"}), nil
}

func (e *Embed) demo(_ context.Context, _ *edge.Caller, in *edge.Raw) (*edge.RawAnswer, error) {
	if e.Production {
		return nil, problem.New(problem.CodeNotFound, "There is no such route.")
	}
	return &edge.RawAnswer{ContentType: "text/html; charset=utf-8", Body: widget.DemoPage(in.Values().Get("key"), strings.TrimSuffix(e.PublicURL, "/")),
		Headers: []edge.Header{{Name: "Content-Security-Policy", Value: widget.DemoPolicy}, {Name: "Referrer-Policy", Value: "same-origin"}}}, nil
}
