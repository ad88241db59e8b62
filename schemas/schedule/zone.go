package schedule

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// zoneinfo is lib/time/zoneinfo.zip of the Go distribution. The zones are this
// copy's alone: time.LoadLocation would prefer the host's, which differ from node
// to node and hold names such as localtime and posix/….
//
//go:embed zoneinfo.zip
var zoneinfo []byte

var archive = sync.OnceValues(func() (*zip.Reader, error) { return zip.NewReader(bytes.NewReader(zoneinfo), int64(len(zoneinfo))) })

// zones caches the zones read from it: at most as many as exist.
var zones sync.Map // name to *time.Location

// zone returns a time zone by its IANA name: UTC, or Area/City.
func zone(name string) (*time.Location, error) {
	if name == "UTC" {
		return time.UTC, nil
	}
	if known, ok := zones.Load(name); ok {
		return known.(*time.Location), nil
	}
	unknown := fmt.Errorf("unknown time zone %q: use UTC, or an IANA name such as Europe/Berlin", clip(name))
	if !strings.Contains(name, "/") || strings.HasSuffix(name, "/") {
		return nil, unknown
	}
	files, err := archive()
	if err != nil {
		return nil, fmt.Errorf("read the zone data: %w", err)
	}
	for _, f := range files.File {
		if f.Name != name {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, fmt.Errorf("read the zone data: %w", err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("read the zone data: %w", err)
		}
		loc, err := time.LoadLocationFromTZData(name, data)
		if err != nil {
			return nil, fmt.Errorf("read the zone data: %w", err)
		}
		zones.Store(name, loc)
		return loc, nil
	}
	return nil, unknown
}

// Zone returns a time zone by its IANA name: UTC, or Area/City.
func Zone(name string) (*time.Location, error) { return zone(name) }
