{{/* The folders that the values ask for. */}}
{{- define "inflight.parts" -}}
- base
{{- if .Values.triton.gpus }}
- components/gpu
{{- end }}
{{- if eq .Values.storage.accessMode "ReadWriteOnce" }}
- components/one-node
{{- end }}
{{- range .Values.components }}
- components/{{ . }}
{{- end }}
{{- end -}}

{{- define "inflight.settings" -}}
{{- .Values.settings | default (.Files.Get "base/inflight.toml") -}}
{{- end -}}

{{/* An image of the registry, by its name. */}}
{{- define "inflight.image" -}}
{{- $place := .registry | empty | ternary .name (printf "%s/%s" .registry .name) -}}
{{- printf "%s:%s" $place .tag | quote -}}
{{- end -}}

{{/* What else they say, as patches. */}}
{{- define "inflight.choices" -}}
{{- $images := dict "registry" .Values.registry "tag" (.Values.tag | default .Chart.AppVersion) -}}
{{- $triton := .Values.triton.gpus | empty | ternary "inflight-triton-cpu" "inflight-triton" -}}
- kind: Deployment
  metadata: {name: inflight-router}
  spec:
    replicas: {{ .Values.router.replicas }}
    template:
      spec:
        containers:
          - name: router
            image: {{ include "inflight.image" (merge (dict "name" "inflight-router") $images) }}
            resources: {{ toJson .Values.router.resources }}
- kind: StatefulSet
  metadata: {name: inflight-triton}
  spec:
    {{- if not (or (has "keda" .Values.components) (has "hpa" .Values.components)) }}
    replicas: {{ .Values.triton.replicas }}
    {{- end }}
    template:
      spec:
        containers:
          - name: triton
            image: {{ include "inflight.image" (merge (dict "name" (.Values.triton.image | default $triton)) $images) }}
            env:
              - {name: INFLIGHT_MODEL, value: {{ quote .Values.model }}}
              - {name: INFLIGHT_EMBEDDINGS, value: {{ quote .Values.embeddings }}}
            {{- with .Values.triton.gpus }}
            resources:
              requests: {nvidia.com/gpu: {{ quote . }}}
              limits: {nvidia.com/gpu: {{ quote . }}}
            {{- end }}
- kind: StatefulSet
  metadata: {name: inflight-triton}
  spec: {template: {spec: {containers: [{name: triton, resources: {{ toJson .Values.triton.resources }}}]}}}
{{- range $kind, $name := dict "Deployment" "inflight-router" "StatefulSet" "inflight-triton" }}
- kind: {{ $kind }}
  metadata: {name: {{ $name }}}
  spec:
    template:
      metadata:
        # Other settings are other pods.
        annotations: {checksum/settings: {{ include "inflight.settings" $ | sha256sum }}}
      {{- with $.Values.pullSecrets }}
      spec:
        imagePullSecrets: [{{ range . }}{name: {{ quote . }}},{{ end }}]
      {{- end }}
{{- end }}
{{- range $name := list "state" "models" }}
- kind: PersistentVolumeClaim
  metadata: {name: inflight-{{ $name }}}
  spec:
    accessModes: [{{ $.Values.storage.accessMode }}]
    {{- with $.Values.storage.className }}
    storageClassName: {{ quote . }}
    {{- end }}
    resources: {requests: {storage: {{ get $.Values.storage $name | quote }}}}
{{- end }}
{{- end -}}
