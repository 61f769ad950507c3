// What the API answers, as far as the console reads it.
export interface Session {
  user: { id: string; name: string; role: string };
  tenant: { id: string; name: string };
  platform_admin: boolean;
  scopes: string[];
  models: string[] | null;
  may: string[];
  csrf_token: string | null;
  expires_s: number | null;
}
export interface Model {
  id: string;
  capabilities: Record<string, boolean>;
  context_length?: number;
}
export interface Span { name: string; start_ms: number; end_ms: number }
export interface Step extends Span { tokens?: number; sequences?: number; batch_tokens?: number; count?: number }
export interface RequestSummary {
  id: string; at_s: number; route: string; status: number; outcome: string | null; error: string | null;
  finish_reason: string | null; tenant: string; key_id: string; model: string | null; release: string | null;
  tier: string; prompt_tokens: number; cached_tokens: number; completion_tokens: number;
  cost_microdollars: number; first_token_ms: number | null; total_ms: number; trace_id: string | null;
  replica: string | null;
}
export interface Waterfall extends RequestSummary {
  stages: Span[]; steps: Step[]; attempts: Record<string, string | number>[];
}
export interface Replica {
  name: string; up: boolean; draining: boolean; requests: number; busy: number | null;
  running: number | null; batch_limit: number | null; kv: number | null; revivals: number;
}
export interface NowRelease {
  release: string; share: number; in_flight: number; requests_per_s: number; prompt_tokens_per_s: number;
  tokens_per_s: number; first_token_p50_s: number | null; first_token_p95_s: number | null;
  inter_token_p50_s: number | null; inter_token_p95_s: number | null; waiting: Record<string, number>;
  kv: number | null; drain_s: number | null; wanted_replicas: number | null; replicas: Replica[];
}
export interface Standing {
  tier: string; metric: string; objective_s: number | null; p50_s?: number | null; p95_s: number | null;
  attained: number | null; samples: number; verdict: string;
}
export interface Point {
  at_s: number; in_flight: number; waiting: number; requests_per_s: number; tokens_per_s: number;
  first_token_p95_s: number | null; inter_token_p95_s: number | null;
}
export interface Now {
  at_s: number; window_s: number;
  router: { up_s: number; cpu: number; peak_memory_bytes: number; watchers: number };
  models: { model: string; goodput: number | null; objectives: Standing[]; releases: NowRelease[] }[];
  tenants: { tenant: string; in_flight: number; requests_per_s: number; tokens_per_s: number; noisy: number | null }[];
  stages: { stage: string; mean_s: number; part: number }[];
  troubles: { status: number; route: string; count: number }[];
  history?: Point[];
}
export interface Release {
  release: string; model: string; version: number; kind: string; built_in: boolean; state: string;
  replicas: number | null; replicas_up: number | null; reason: string; since_s: number; wanted: boolean;
  share: number; role: string; added_s: number; notes: string;
}
export interface ReleaseDetail extends Release {
  digest: string; weights_sha256: string; tokenizer_sha256: string; triton_models: unknown;
  parameters: Record<string, string>; needs: Record<string, unknown>; files: number; file_bytes: number;
  profile: Record<string, number> | null;
}
export interface Gate {
  gate: string; shown: string; against: number; within: number | null; more_requests: number | null;
  allowed: string; figures: string;
}
export interface Arm {
  version: number; errors: { hits: number; total: number }; refusals: { hits: number; total: number };
  step_requests: number; first_token_s: number | null; between_tokens_s: number | null; tokens: number | null;
}
export interface Rollout {
  id: number; model: string; stable: number; canary: number; state: string; reason: string;
  plan: { weights: number[]; min_requests: number; min_duration_s: number };
  progress: { step: number; step_began_s: number; step_requests: number; paused: boolean };
  figures: { gates?: Gate[]; canary?: Arm; stable?: Arm; before_traffic?: { line?: string } };
  began_s: number; ended_s: number | null;
}
export interface ReleasedModel {
  model: string; kind: string; split: { stable: number | null; standby: number | null; sticky: string } | null;
  rollout: Rollout | null; releases: Release[];
}
export interface ReleaseEvent { at_s: number; model: string; version: number | null; what: string; reason: string }
export interface Decision {
  at_s: number; model: string; version: number; triton_model: string; action: string; sentence: string;
}
export interface Tuning {
  model: string; has_objective: boolean; paused_s: number | null; standing: Decision[]; engines: Decision[];
  changes: Decision[];
}
export interface Tenant { id: string; name: string; created_s: number; deleted_s: number | null }
export interface User { id: string; name: string; role: string; platform_admin: boolean; created_s: number }
export interface Key {
  id: string; user_id: string; name: string; prefix: string; scopes: string[]; models: string[] | null;
  created_s: number; expires_s: number | null; revoked_s: number | null; key?: string;
}
export type Limits = Record<string, number | boolean | null>;
export interface Usage {
  day?: string; model?: string; organisation?: string; key?: string; user?: string; requests: number;
  prompt_tokens: number; cached_tokens: number; completion_tokens: number; cost_microdollars: number;
}
export interface Price { model: string; prompt: number; cached_prompt: number; completion: number }
export interface AuditEntry {
  at_s: number; actor: string; organisation_id: string | null; action: string; target: string; allowed: boolean;
  detail: object; key_id: string; address: string;
}
export interface ObjectivesOfModel { model: string; kind: string | null; tiers: Record<string, Record<string, Standing>> }
export interface Addition {
  id: string; model: string; source: string; state: string; release: string | null; reason: string; said: string[];
  began_s: number; ended_s: number | null;
}
export type Terms = { first_token_s?: number | null; inter_token_s?: number | null };
export interface RecordedHours {
  model: string; replicas: number; objectives: Record<string, Terms>; engine: SimulatedEngine;
  data: { began_s: number; requests: number; prompt_tokens: number; completion_tokens: number }[];
}
export interface SimulatedEngine {
  cost: { base_ms: number; prefill_token_ms: number; decode_sequence_ms: number; kv_kilotoken_ms: number };
  slots: number; step_tokens: number; kv_tokens: number; is_example: boolean;
}
export interface SimulatedTier {
  tier: string; offered: number; good: number; refused: number; first_token_p50_s: number | null;
  first_token_p95_s: number | null; inter_token_p50_s: number | null; inter_token_p95_s: number | null; work_share: number;
}
export interface SimulatedVariant {
  policy: string; replicas: number; objectives: Record<string, Terms>;
  figures: {
    offered: number; good: number; goodput_per_s: number; tokens_per_s: number; refused: number; fairness: number;
    busy_share: number; mean_batch: number; preemptions: number; drain_peak_s: number | null; tiers: SimulatedTier[];
    tenants: { tenant: string; offered: number; good: number; work_share: number; of_fair_share: number }[];
  };
  moments: { at_s: number; waiting: number; running: number; drain_s: number | null; risk: number }[];
}
export interface Simulation {
  model: string; rate: number; engine: SimulatedEngine; variants: SimulatedVariant[];
  trace: { name: string; requests: number; duration_s: number; shortened: number };
}
