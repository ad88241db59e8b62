package ingest

import "github.com/prometheus/client_golang/prometheus"

var (
	indexed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_ingest_documents_total", Help: "Documents of knowledge bases whose reading has ended, by the status it led to.",
	}, []string{"status"})
	building = prometheus.NewGauge(prometheus.GaugeOpts{Name: "svc_ingest_documents", Help: "Documents that are being indexed."})
)
