{{/* The autoscaled classes of executors with their defaults, by name; none where autoscaling is off. */}}
{{- define "nereid.autoscaledClasses" -}}
{{- $classes := dict -}}
{{- $enabled := include "nereid.classes" . | fromYaml -}}
{{- $v := .Values.autoscaling | default (dict "mode" "none") -}}
{{- if ne $v.mode "none" -}}
{{- range $name, $class := $v.executor.classes -}}
{{- if not (hasKey $enabled $name) -}}
{{- fail (printf "\nautoscaling.executor.classes.%s: executor.classes has no such class, or it is not enabled" $name) -}}
{{- end -}}
{{- $executor := get $enabled $name -}}
{{- $merged := mustMergeOverwrite (deepCopy $v.executor.defaults) (deepCopy ($class | default dict)) -}}
{{- if not $merged.devices -}}
{{- $_ := set $merged "devices" (ternary (list "cpu" "any") (list "gpu" "any") (eq $executor.gpus "none")) -}}
{{- end -}}
{{- if and (eq (int $merged.minReplicas) 0) (ne $v.mode "keda") -}}
{{- fail (printf "\nautoscaling.executor.classes.%s.minReplicas: 0 needs autoscaling.mode: keda" $name) -}}
{{- end -}}
{{- if lt (int $merged.maxReplicas) (max 1 (int $merged.minReplicas)) -}}
{{- fail (printf "\nautoscaling.executor.classes.%s.maxReplicas: is less than minReplicas" $name) -}}
{{- end -}}
{{- $_ := set $classes $name $merged -}}
{{- end -}}
{{- end -}}
{{- toYaml $classes -}}
{{- end -}}

{{/* "true" if gateways are autoscaled. */}}
{{- define "nereid.scalesGateways" -}}
{{- $v := .Values.autoscaling | default (dict "mode" "none") -}}
{{- if and (ne $v.mode "none") $v.gateway.enabled }}true{{ end -}}
{{- end -}}

{{/* "true" if there may be no executor at all: gateways are ready then, and requests wait longer. */}}
{{- define "nereid.scalesToZero" -}}
{{- $zero := false -}}
{{- range $name, $class := include "nereid.autoscaledClasses" . | fromYaml -}}
{{- if eq (int $class.minReplicas) 0 -}}{{- $zero = true -}}{{- end -}}
{{- end -}}
{{- if $zero }}true{{ end -}}
{{- end -}}

{{/* Scales up at once, and down slowly: a queue that has emptied says nothing of what the next minute brings. */}}
{{- define "nereid.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  selectPolicy: Max
  policies:
    - {type: Percent, value: 100, periodSeconds: 15}
    - {type: Pods, value: 4, periodSeconds: 15}
scaleDown:
  stabilizationWindowSeconds: {{ int .scaleDownWindowSeconds }}
  selectPolicy: Max
  policies:
    - {type: Percent, value: 50, periodSeconds: 60}
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end -}}
