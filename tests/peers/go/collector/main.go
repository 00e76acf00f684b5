// An OpenTelemetry collector with the OTLP receiver, and an exporter that writes each request's metrics as a line of JSON.
package main

import (
	"context"
	"log"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

type config struct {
	Path string `mapstructure:"path"`
}

type lines struct {
	path  string
	mutex sync.Mutex
	file  *os.File
}

func (l *lines) Start(context.Context, component.Host) (err error) {
	l.file, err = os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return err
}

func (l *lines) Shutdown(context.Context) error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

func (l *lines) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{}
}

func (l *lines) ConsumeMetrics(_ context.Context, metrics pmetric.Metrics) error {
	marshaler := pmetric.JSONMarshaler{}
	line, err := marshaler.MarshalMetrics(metrics)
	if err != nil {
		return err
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	_, err = l.file.Write(append(line, '\n'))
	return err
}

func lineExporter() exporter.Factory {
	return exporter.NewFactory(
		component.MustNewType("lines"),
		func() component.Config { return &config{} },
		exporter.WithMetrics(
			func(_ context.Context, _ exporter.Settings, given component.Config) (exporter.Metrics, error) {
				return &lines{path: given.(*config).Path}, nil
			},
			component.StabilityLevelDevelopment,
		),
	)
}

func factories() (otelcol.Factories, error) {
	receivers, err := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	exporters, err := otelcol.MakeFactoryMap[exporter.Factory](lineExporter())
	return otelcol.Factories{
		Receivers: receivers, Exporters: exporters, Telemetry: otelconftelemetry.NewFactory(),
	}, err
}

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "collector", Version: "0.165.0"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
				DefaultScheme:     "file",
			},
		},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		log.Fatal(err)
	}
}
